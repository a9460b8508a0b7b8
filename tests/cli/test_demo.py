"""The demo runs the commands that it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine


def test_dry_run_prints_commands(run: CommandLine) -> None:
    """A dry run prints the commands, and makes nothing."""
    answer = run("demo", "--dry-run", "--text", "two words", "--folder", "out")
    lines = answer.stdout.splitlines()
    assert lines[-2].startswith(
        "$ plansmith compile hf:sentence-transformers/all-MiniLM-L6-v2 --name minilm --pipeline "
    )
    assert lines[-1] == "$ plansmith infer minilm --text 'two words' --serve --repository out/repository"
    assert not [*run.folder.iterdir()]


def test_demo_asks_text_models(run: CommandLine) -> None:
    """Another source than of transformers is refused before anything runs."""
    answer = run("demo", "--source", "timm:resnet18")
    assert answer.status == 2
    assert (
        "Next: pass --source hf:<id or directory>, or compile yours: plansmith compile timm:resnet18" in answer.stderr
    )


@pytest.mark.slow
def test_first_failure_ends_demo(tmp_path: Path) -> None:
    """A command that fails ends the demo with its own message and exit code."""
    answer = CommandLine(tmp_path)("demo", "--source", "hf:./nowhere", "--folder", "out")
    assert answer.status == 3
    assert "there is no directory" in answer.stderr
    assert "infer" not in answer.stdout


@pytest.mark.slow
def test_demo_ends_with_embedding(tmp_path: Path, minilm_folder: Path) -> None:
    """From a directory to the embedding of a text by Triton."""
    answer = CommandLine(tmp_path)("demo", "--source", f"hf:{minilm_folder}", "--folder", "out")
    assert answer.status == 0, answer
    assert "minilm published, version 1: onnxruntime, fp32, gate passed" in answer.stdout
    assert "norm 1.0000" in answer.stdout
