"""Models that generate text beside others, asked by a script: the shipped specs through the command and on Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.triton.client import Client

from ..support.cli.command import CommandLine, check_refusal
from ..support.cli.commands import compile_model, serve
from ..support.generators import write_gpt2
from ..support.pipelines.classifiers import save_classifiers
from ..support.pipelines.columns import column
from ..support.real_sentences import real_sentences
from ..support.triton.installed import installation, site

__all__ = ["installation", "site"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.xdist_group("end-to-end"),
    pytest.mark.usefixtures("installation", "site"),
]

SHIPPED = Path(__file__).parents[2] / "configs" / "models"
LANGUAGES = {b"english", b"german", b"french"}
SCRIPT = """\
def answer(inputs, models):
    return {"text": models["gpt2"](text=inputs["text"], parameters=PARAMETERS)["text"]}

OUTPUTS = {"text": ("string", ["batch", 1])}
PARAMETERS = {"max_new_tokens": 4}
"""
SPEC = """\
source: hf:./mood
name: reader
pipeline: {script: route.py, models: {gpt2: {source: "hf:./gpt2", engine: python}}}
"""


@pytest.mark.parametrize(("name", "output"), [("translator-random", "translation"), ("assistant-random", "answer")])
def test_shipped_spec(tmp_path: Path, name: str, output: str) -> None:
    """Two models answer one request: each text has its language, and a text of its own."""
    release = compile_model(tmp_path / "artifacts", str(SHIPPED / f"{name}.yaml"))
    assert release["verdict"] == "passed"
    texts = column(*(text.encode() for text in real_sentences()[:6]))
    with serve(release["repository"], name, tmp_path / "served") as (url, _), Client(url, model=name) as client:
        answer = client.infer({"text": texts})
    languages = set(answer["language"].reshape(-1))
    assert languages <= LANGUAGES
    assert len(languages) > 1, "random weights take all sentences for one language"
    assert len(set(answer[output].reshape(-1))) == len(texts)
    assert any(text != own for text, own in zip(answer[output].reshape(-1), texts.reshape(-1), strict=True))


@pytest.mark.parametrize(
    ("spec", "script", "status", "says"),
    [
        (SPEC, SCRIPT.replace('"max_new_tokens": 4', '"max_new_tokens": 0'), 2, ("refuses every request",)),
        (SPEC, SCRIPT.replace('"gpt2"', '"main"'), 2, ("takes no parameters", "does not generate text")),
        (SPEC.replace(", engine: python", ""), SCRIPT, 2, ("generates text token by token", "engine")),
        (SPEC.replace("engine: python", "engine: python, pipeline: {stream: true}"), SCRIPT, 2, ("streams its text",)),
        (
            SPEC.replace("hf:./mood", "hf:./gpt2").replace("script: route.py, ", "").replace("./gpt2, e", "./mood, e")
            + "engine: python\n",
            SCRIPT,
            2,
            ("answers no requests beside another model without a script",),
        ),
    ],
    ids=["parameters", "no parameters", "engine", "stream", "no script"],
)
def test_what_cannot_be_asked(tmp_path: Path, spec: str, script: str, status: int, says: tuple[str, ...]) -> None:
    """Parameters out of range, or of a model that takes none, and models that do not fit together are refused."""
    save_classifiers(tmp_path)
    write_gpt2(tmp_path / "gpt2")
    (tmp_path / "route.py").write_text(script)
    (tmp_path / "reader.yaml").write_text(spec)
    check_refusal(CommandLine(tmp_path)("compile", "reader.yaml", "--json"), status, says)
