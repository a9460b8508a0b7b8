"""What the options of a compile make of what a person types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from plansmith.cli.compile_options import compile_options


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
