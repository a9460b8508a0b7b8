"""Places that cannot be written, repositories of others, and a Triton that is missing or fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..support.cli.command import BERT, CommandLine, Refused, check_refusal, listing
from .conftest import Compiled

_FILES = {"bert/config.json": json.dumps(BERT), "bert/model.safetensors": "weights", "file": "not a folder"}
_UNCHECKED = ("hf:bert", "--no-check-served")
_OTHERS = {"target": "triton-26.08-cpu"}
_NO_TRITON = ("/nope", "there is no Triton server", "bin/tritonserver")

EARLY = {
    "artifacts where nothing can be made": Refused(
        (*_UNCHECKED, "--artifacts", "/proc/nope"), 7, ("cannot write to /proc/nope", "--artifacts"), _FILES
    ),
    "artifacts below a file": Refused((*_UNCHECKED, "--artifacts", "file/a"), 7, ("file", "--artifacts"), _FILES),
    "a repository where nothing can be made": Refused(
        (*_UNCHECKED, "--repository", "/proc/nope"), 7, ("cannot write to /proc/nope", "--repository"), _FILES
    ),
    "a repository below a file": Refused((*_UNCHECKED, "--repository", "file/r"), 7, ("file", "--repository"), _FILES),
    "a repository that is a file": Refused((*_UNCHECKED, "--repository", "file"), 7, ("file", "--repository"), _FILES),
    "the repository of another target": Refused(
        (*_UNCHECKED, "--repository", "theirs"),
        7,
        ("theirs belongs to target triton-26.08-cpu, not local-cpu", "--target triton-26.08-cpu", "another folder"),
        _FILES | {"theirs.plansmith/repository.json": json.dumps(_OTHERS)},
    ),
    "a damaged repository": Refused(
        (*_UNCHECKED, "--repository", "theirs"),
        7,
        (
            "theirs.plansmith/repository.json",
            "is damaged",
        ),
        _FILES | {"theirs.plansmith/repository.json": "{"},
    ),
    "a missing Triton by option": Refused(
        ("hf:bert", "--tritonserver", "/nope"), 9, ("was given", *_NO_TRITON), _FILES
    ),
    "a missing Triton by variable": Refused(
        ("hf:bert",),
        9,
        ("PLANSMITH_TRITONSERVER", *_NO_TRITON),
        _FILES,
        {"PLANSMITH_TRITONSERVER": "/nope"},
    ),
    "a Triton, a repository and an option": Refused(
        ("bert.yaml", "--repository", "theirs"),
        2,
        ("3 problems:", "triton.max_batch_size: 33 is more", "theirs belongs to target", *_NO_TRITON, "another folder"),
        _FILES
        | {
            "theirs.plansmith/repository.json": json.dumps(_OTHERS),
            "bert.yaml": "source: hf:bert\ntritonserver: /nope\ntriton: {max_batch_size: 33}\n",
        },
    ),
    "a Triton without backends": Refused(
        ("hf:bert", "--tritonserver", "bare"),
        9,
        ("bare", "backends"),
        _FILES | {"bare/bin/tritonserver": "#!/bin/sh\n"},
    ),
    "a target whose ONNX Runtime is not here": Refused(
        ("hf:bert", "--target", "triton-26.08-cpu"),
        9,
        ("ONNX Runtime 1.28.0 is not installed for serving", "plansmith serve-env add triton-26.08-cpu"),
        _FILES | {"server/bin/tritonserver": "#!/bin/sh\n", "server/backends/": ""},
        {"PLANSMITH_TRITONSERVER": "server"},
    ),
}


@pytest.mark.parametrize("case", EARLY.values(), ids=EARLY.keys())
def test_unusable_place_refused_early(case: Refused, run: CommandLine) -> None:
    """A place that cannot be used is refused before any work."""
    case.lay_out(run.folder)
    for server in run.folder.glob("*/bin/tritonserver"):
        server.chmod(0o755)
    before = listing(run.folder)
    answer = run("compile", *case.arguments, "--json", **case.variables)
    check_refusal(answer, case.status, case.says)
    assert listing(run.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("complaint", ["E1120 10:00:00 1 main.cc:1] no backend for you", "Killed by the moon"])
def test_failing_triton_publishes_nothing(complaint: str, finished: Compiled, run: CommandLine) -> None:
    """A Triton that fails is quoted, and nothing is published."""
    fake_triton(finished.folder / "server", complaint)
    arguments = ("--name", "other", "--repository", "other", "--check-served", "--tritonserver", "server", "--json")
    answer = run(*finished.command, *arguments)
    check_refusal(answer, 8, ("other · check_served", "ended with status 1", complaint, "read the log", "Log: "))
    assert (finished.folder / answer.document["log"]).read_text().endswith(f"{complaint}\n")
    assert "line 1\n" not in answer.message
    assert not list(finished.folder.glob("other*"))


@pytest.mark.slow
def test_failing_triton_keeps_served_version(finished: Compiled, run: CommandLine) -> None:
    """A Triton that fails leaves the served version as it is."""
    fake_triton(finished.folder / "server", "no")
    places = [finished.folder / "artifacts" / name for name in ("repository", "repository.plansmith")]
    before = [listing(place) for place in places]
    answer = run(*finished.command, "--check-served", "--tritonserver", "server", "--json")
    check_refusal(answer, 8, ("tiny · check_served",))
    assert [listing(place) for place in places] == before


def fake_triton(root: Path, complaint: str) -> None:
    """A server with an ONNX Runtime backend of its own that prints much, complains and ends."""
    backend = root / "backends" / "onnxruntime"
    backend.mkdir(parents=True)
    (backend / "libtriton_onnxruntime.so").touch()
    (root / "bin").mkdir()
    binary = root / "bin" / "tritonserver"
    binary.write_text(f"#!/bin/sh\nfor n in $(seq 30); do echo line $n; done\necho '{complaint}' >&2\nexit 1\n")
    binary.chmod(0o755)
