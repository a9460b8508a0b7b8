"""What the options of a compile make of what a person types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from plansmith.cli.compile.compile import compile_options
from plansmith.cli.compile.specs import specs_from_arguments


@pytest.mark.parametrize(("words", "kept"), [((), None), (("--tritonserver", "server"), "server")])
def test_server_remembered_by_path(
    words: tuple[str, ...], kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is remembered by its whole path."""
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {}

    @click.command()
    @compile_options
    def command(**options: Any) -> None:
        values.update(options)

    assert CliRunner().invoke(command, words).exit_code == 0
    assert values["tritonserver"] == (kept and str(tmp_path / kept))


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
def test_pipeline_option_keeps_spec_settings(
    words: list[str], written: str, expected: int | None, tmp_path: Path
) -> None:
    """A pipeline is asked for or left out, and keeps what the spec says of it."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"source: hf:model\n{written}\n")
    values: dict[str, Any] = {}

    @click.command()
    @compile_options
    def command(**options: Any) -> None:
        values.update(options)

    assert CliRunner().invoke(command, words).exit_code == 0
    result = specs_from_arguments(str(spec), values)[0].models[0].spec.pipeline
    assert (result and result.top_k) == expected
