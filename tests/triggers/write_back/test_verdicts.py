"""What a registry is told of a build is a few names that are always the same, with texts that it takes."""

from __future__ import annotations

import json
import re

import pytest

from plansmith.triggers.write_back.verdicts import Form, Verdict, whole_verdict

from ...support.triggers.builds import RUN, build, telling, version

FORM = Form(longest_name=250, longest_value=5000)
PLAIN = Form(longest_name=128, longest_value=256, foreign=r"[^\w .:/=+\-@]", as_json=False)


def test_a_published_build_says_where_it_stands_its_manifest_its_figures_and_its_run() -> None:
    assert FORM.texts(telling(build(), event=version())) == {
        "plansmith.ranker.local-cpu.verdict": "published",
        "plansmith.ranker.local-cpu.reason": "none",
        "plansmith.ranker.local-cpu.published": "/srv/repository version 4, s3://releases/team version 3",
        "plansmith.ranker.local-cpu.manifest": "ab" * 32,
        "plansmith.ranker.local-cpu.figures": '{"bytes": 1024, "precision": "fp16", "min_cosine": 0.9999}',
        "plansmith.ranker.local-cpu.run": RUN,
        "plansmith.verdict": "published",
    }


def test_what_failed_says_why_under_the_same_names() -> None:
    well = FORM.texts(telling(build(), event=version()))
    badly = FORM.texts(telling(build("refused"), event=version()))
    assert badly.keys() == well.keys()
    assert badly["plansmith.ranker.local-cpu.reason"] == "refused at validate, exit code 5"
    assert badly["plansmith.ranker.local-cpu.manifest"] == "none"
    assert badly["plansmith.verdict"] == "refused"


def test_each_model_and_target_has_names_of_its_own_and_the_whole_comes_last() -> None:
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


def test_what_is_not_known_of_the_whole_is_not_said() -> None:
    assert "plansmith.verdict" not in FORM.texts(telling(build(), event=version(), is_whole=False))


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (("published", "published"), "published"),
        (("published", "refused"), "refused"),
        (("refused", "failed", "published"), "failed"),
        (("cancelled", "failed"), "cancelled"),
        ((), "published"),
    ],
)
def test_the_whole_is_published_where_all_of_it_is(found: tuple[Verdict, ...], whole: Verdict) -> None:
    assert whole_verdict(found) == whole


def test_a_plain_form_has_no_json_and_only_what_it_may_hold() -> None:
    texts = PLAIN.texts(telling(build(places=("/srv/a (b), c {1}", "s3://x")), event=version()))
    assert texts["plansmith.ranker.local-cpu.figures"] == "bytes=1024 precision=fp16 min_cosine=0.9999"
    assert texts["plansmith.ranker.local-cpu.published"] == "/srv/a b c 1 s3://x"
    assert all(re.fullmatch(r"[\w .:/=+\-@]{1,256}", text) for text in texts.values())


def test_what_is_too_long_is_cut_between_characters_and_figures_stay_whole() -> None:
    figures = {f"metric_{number}": number / 7 for number in range(400)}
    one = build(places=("/" + "ä" * 5000,), figures=figures)
    for form in (FORM, PLAIN):
        texts = form.texts(telling(one, event=version()))
        assert {len(text.encode()) <= form.longest_value for text in texts.values()} == {True}
        place = texts["plansmith.ranker.local-cpu.published"]
        assert place == "/" + "ä" * ((form.longest_value - 1) // 2)
    kept = json.loads(FORM.texts(telling(one, event=version()))["plansmith.ranker.local-cpu.figures"])
    assert list(kept.items()) == list(figures.items())[: len(kept)]
    assert len(kept) > 100
    told = PLAIN.texts(telling(one, event=version()))["plansmith.ranker.local-cpu.figures"]
    assert dict(pair.split("=") for pair in told.split()) == {
        name: str(value) for name, value in list(figures.items())[: len(told.split())]
    }


def test_odd_and_long_names_of_models_are_told_apart_and_fit() -> None:
    names = ("a/b", "a:b", "x" * 300, "x" * 299 + "y")
    found = [set(FORM.texts(telling(build(model=name), event=version()))) for name in names]
    for some in found:
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,250}", name) for name in some)
    assert set.intersection(*found) == {"plansmith.verdict"}
    assert [len(set.union(one, other)) for one, other in ((found[0], found[1]), (found[2], found[3]))] == [13, 13]
