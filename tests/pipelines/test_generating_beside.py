"""Models that generate text beside others, asked by a script: what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine, check_refusal
from ..support.generators import write_gpt2
from ..support.pipelines.classifiers import save_classifiers
from ..support.triton.installed import installation, site

__all__ = ["installation", "site"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.xdist_group("end-to-end"),
    pytest.mark.usefixtures("installation", "site"),
]

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
