"""Many models from a folder of specs."""

from __future__ import annotations

from ..support.cli.command import CommandLine
from ..support.prefect.fleets import lay_out


def test_fleet_builds_what_is_stale(terminal: CommandLine) -> None:
    """A plan says what is stale, a run builds that and stops at no failure, and all is fresh but what failed."""
    lay_out(terminal.folder, "one", "two")
    lay_out(terminal.folder, "broken")
    (terminal.folder / "specs" / "broken.onnx").write_bytes(b"this is no graph")
    planned = terminal.document("fleet", "plan", "specs")["models"]
    assert {model["model"]: model["state"] for model in planned} == dict.fromkeys(("broken", "one", "two"), "stale")
    ran = terminal("fleet", "run", "specs")
    assert ran.status == 3, ran
    assert ran.stdout.startswith("3 models: 2 published, 1 failed; ")
    assert "Next: " in ran.stderr
    states = {model["model"]: model["state"] for model in terminal.document("status", "specs")["models"]}
    assert states == {"broken": "stale", "one": "fresh", "two": "fresh"}


def test_gc_leaves_the_version(terminal: CommandLine) -> None:
    """What `plansmith gc --dry-run` lists goes when it is meant, and the version stays and is found unchanged."""
    lay_out(terminal.folder, "one")
    first = terminal.document("compile", "specs/one.yaml")
    gc = ("gc", "--older-than", "0", "--artifacts", "artifacts")
    listed = terminal.document(*gc, "--dry-run")
    assert {row["kind"] for row in listed["garbage"]} >= {"cache entry", "log"}
    assert terminal.document(*gc)["freed_bytes"] > 0
    assert not list((terminal.folder / "artifacts" / "cache").glob("*/*/entry.json"))
    again = terminal.document("compile", "specs/one.yaml")
    assert (again["version"], again["unchanged"]) == (first["version"], True)
