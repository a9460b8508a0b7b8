"""What the options of a compile make of what a person types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from plansmith.cli.compile.options import compile_options
from plansmith.cli.compile.specs import specs_from_arguments


@pytest.mark.parametrize(("words", "kept"), [((), None), (("--tritonserver", "server"), "server")])
def test_a_server_is_remembered_by_its_whole_path(
    words: tuple[str, ...], kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: dict[str, Any] = {}

    @click.command()
    @compile_options
    def command(**options: Any) -> None:
        told.update(options)

    assert CliRunner().invoke(command, words).exit_code == 0
    assert told["tritonserver"] == (kept and str(tmp_path / kept))


@pytest.mark.parametrize(
    ("words", "written", "expected"),
    [
        ([], "pipeline: {top_k: 3}", 3),
        (["--pipeline"], "pipeline: {top_k: 3}", 3),
        (["--pipeline"], "", 5),
        (["--no-pipeline"], "pipeline: {top_k: 3}", None),
        ([], "", None),
    ],
)
def test_a_pipeline_is_asked_for_or_left_out_and_keeps_what_the_spec_says_of_it(
    words: list[str], written: str, expected: int | None, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"source: hf:model\n{written}\n")
    told: dict[str, Any] = {}

    @click.command()
    @compile_options
    def command(**options: Any) -> None:
        told.update(options)

    assert CliRunner().invoke(command, words).exit_code == 0
    found = specs_from_arguments(str(spec), told)[0].models[0].spec.pipeline
    assert (found and found.top_k) == expected
