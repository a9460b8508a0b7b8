"""Compiles of a small model in a folder of their own, and what they must leave there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.steps.provenance.history import RunRecord

from ..faults.wholeness import (
    cache_problems,
    release_numbers,
    repository_problems,
    shown_versions,
    staging_problems,
    store_of,
)
from .fleets import hold, write_graph

NAME = "tiny"


def small_spec(folder: Path, *, held: bool = False) -> dict[str, Any]:
    """A small model with artifacts of its own.

    Args:
        folder: of the model and the artifacts.
        held: once the model is fetched its compile waits for a `go` in the folder, and leaves a `held` there when it
            does.
    """
    write_graph(folder / "tiny.onnx")
    spec = {"source": f"onnx:{folder / 'tiny.onnx'}", "name": NAME, "check_served": False}
    return {**spec, "artifacts": str(folder / "artifacts"), **(hold(folder) if held else {})}


def records(folder: Path) -> list[RunRecord]:
    """What the compiles of a folder wrote of themselves, in turn."""
    files = sorted(folder.glob("artifacts/history/*.json"), key=lambda file: int(file.stem))
    return [RunRecord.model_validate_json(file.read_bytes()) for file in files]


def has_finished(folder: Path, step: str) -> bool:
    """Whether a step of one of them lies in the cache."""
    return any(folder.glob(f"artifacts/cache/{step}/*/entry.json"))


def problems(folder: Path) -> list[str]:
    """What is torn in the cache and in the repository, which must be whole at any moment."""
    return cache_problems(folder / "artifacts" / "cache") + repository_problems(folder / "artifacts" / "repository")


def check_whole(folder: Path) -> None:
    """One version, released and shown, and nothing else."""
    root = folder / "artifacts" / "repository"
    assert problems(folder) == []
    assert (release_numbers(root, NAME), shown_versions(root, NAME)) == ((1,), (1,))
    left = staging_problems(folder / "artifacts" / "cache" / "staging") + staging_problems(store_of(root) / "staging")
    assert left == []


def check_nothing_half_made(folder: Path) -> None:
    """What a killed run leaves in staging is the next one's to sweep; nothing else is there but whole entries."""
    assert problems(folder) == []
    assert not (store_of(folder / "artifacts" / "repository") / "releases").exists()
