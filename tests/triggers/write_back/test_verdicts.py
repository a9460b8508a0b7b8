"""What a registry is told of a build is a few names that are always the same, with texts that it takes."""

from __future__ import annotations

import json
import re

import pytest

from plansmith.triggers.write_back import Form, Verdict, whole_verdict

from ...support.triggers.builds import RUN, build, telling, version

FORM = Form(longest_name=250, longest_value=5000)
PLAIN = Form(longest_name=128, longest_value=256, foreign=r"[^\w .:/=+\-@]", as_json=False)


def test_published_build_tells_figures() -> None:
    """A published build says where it stands, its manifest, its figures and its run."""
    assert FORM.texts(telling(build(), event=version())) == {
        "plansmith.ranker.local-cpu.verdict": "published",
        "plansmith.ranker.local-cpu.reason": "none",
        "plansmith.ranker.local-cpu.published": "/srv/repository version 4, s3://releases/team version 3",
        "plansmith.ranker.local-cpu.manifest": "ab" * 32,
        "plansmith.ranker.local-cpu.figures": '{"bytes": 1024, "precision": "fp16", "min_cosine": 0.9999}',
        "plansmith.ranker.local-cpu.run": RUN,
        "plansmith.verdict": "published",
    }


def test_failure_uses_same_names() -> None:
    """What failed says why under the same names."""
    well = FORM.texts(telling(build(), event=version()))
    badly = FORM.texts(telling(build("refused"), event=version()))
    assert badly.keys() == well.keys()
    assert badly["plansmith.ranker.local-cpu.reason"] == "refused at validate, exit code 5"
    assert badly["plansmith.ranker.local-cpu.manifest"] == "none"
    assert badly["plansmith.verdict"] == "refused"


def test_model_target_names_before_whole() -> None:
    """Each model and target has names of its own, and the whole comes last."""
    builds = (build(), build("failed", target="triton-26.03"), build(model="embedder"))
    texts = FORM.texts(telling(*builds, event=version()))
    assert len(texts) == 3 * 6 + 1
    assert {name: text for name, text in texts.items() if name.endswith("verdict")} == {
        "plansmith.ranker.local-cpu.verdict": "published",
        "plansmith.ranker.triton-26.03.verdict": "failed",
        "plansmith.embedder.local-cpu.verdict": "published",
        "plansmith.verdict": "failed",
    }
    assert list(texts)[-1] == "plansmith.verdict"


def test_unknown_parts_of_whole_unsaid() -> None:
    """What is not known of the whole is not said."""
    assert "plansmith.verdict" not in FORM.texts(telling(build(), event=version(), is_whole=False))


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (("published", "published"), "published"),
        (("published", "refused"), "refused"),
        (("refused", "failed", "published"), "failed"),
        (("cancelled", "failed"), "cancelled"),
        ((), "published"),
    ],
)
def test_whole_published_when_parts_are(verdicts: tuple[Verdict, ...], whole: Verdict) -> None:
    """The whole is published where all of it is."""
    assert whole_verdict(verdicts) == whole


def test_plain_form_has_no_json() -> None:
    """A plain form has no JSON, and only what it may hold."""
    texts = PLAIN.texts(telling(build(places=("/srv/a (b), c {1}", "s3://x")), event=version()))
    assert texts["plansmith.ranker.local-cpu.figures"] == "bytes=1024 precision=fp16 min_cosine=0.9999"
    assert texts["plansmith.ranker.local-cpu.published"] == "/srv/a b c 1 s3://x"
    assert all(re.fullmatch(r"[\w .:/=+\-@]{1,256}", text) for text in texts.values())


def test_long_texts_cut_between_characters() -> None:
    """What is too long is cut between characters, and figures stay whole."""
    figures = {f"metric_{number}": number / 7 for number in range(400)}
    outcome = build(places=("/" + "ä" * 5000,), figures=figures)
    for form in (FORM, PLAIN):
        texts = form.texts(telling(outcome, event=version()))
        assert {len(text.encode()) <= form.longest_value for text in texts.values()} == {True}
        place = texts["plansmith.ranker.local-cpu.published"]
        assert place == "/" + "ä" * ((form.longest_value - 1) // 2)
    result = json.loads(FORM.texts(telling(outcome, event=version()))["plansmith.ranker.local-cpu.figures"])
    assert list(result.items()) == list(figures.items())[: len(result)]
    assert len(result) > 100
    line = PLAIN.texts(telling(outcome, event=version()))["plansmith.ranker.local-cpu.figures"]
    assert dict(pair.split("=") for pair in line.split()) == {
        name: str(value) for name, value in list(figures.items())[: len(line.split())]
    }


def test_odd_model_names_fit_distinctly() -> None:
    """Odd and long names of models are told apart and fit."""
    names = ("a/b", "a:b", "x" * 300, "x" * 299 + "y")
    keys = [set(FORM.texts(telling(build(model=name), event=version()))) for name in names]
    for some in keys:
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,250}", name) for name in some)
    assert set.intersection(*keys) == {"plansmith.verdict"}
    assert [len(set.union(first, second)) for first, second in ((keys[0], keys[1]), (keys[2], keys[3]))] == [13, 13]
