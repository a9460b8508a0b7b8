"""The folder of backends that a server is started with: its own, and stand-ins for those that it lacks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from plansmith.triton.installation import Installation
from plansmith.triton.other_python import LentPython, write_choosing_stub

STANDINS = Path(__file__).parent / "standin"

_ONNXRUNTIME, _DALI, _PYTHON = "onnxruntime", "dali", "python"


def lay_out_backends(
    folder: Path,
    installation: Installation,
    site: Path | None = None,
    dali_site: Path | None = None,
    lent: Sequence[LentPython] = (),
) -> None:
    """Make a backend directory: Triton refuses a library that a link leads out of it, but follows a linked folder.

    Args:
        folder: made here.
        installation: the server.
        site: the packages of the stand-in for the ONNX Runtime backend; without them it is not laid out.
        dali_site: likewise for DALI.
        lent: the Pythons beside its own that the server runs models with.
    """
    folder.mkdir()
    stand_ins: dict[str, Path] = {}
    if site is not None and not installation.real_onnxruntime:
        stand_ins[_ONNXRUNTIME] = site
    if dali_site is not None and not installation.real_dali:
        stand_ins[_DALI] = dali_site
    for backend in installation.backends.iterdir():
        if backend.name not in stand_ins and (backend.name != _PYTHON or installation.stub is None):
            (folder / backend.name).symlink_to(backend)
    if installation.stub is not None:
        shutil.copytree(installation.backends / _PYTHON, folder / _PYTHON)
        shutil.copy2(installation.stub, folder / _PYTHON)
        if lent:
            write_choosing_stub(folder / _PYTHON / installation.stub.name, installation.stub, lent)
    for name, packages in stand_ins.items():
        shutil.copytree(STANDINS / name, folder / name, ignore=shutil.ignore_patterns("__*"))
        (folder / name / "site").symlink_to(packages.absolute())
    if _ONNXRUNTIME in stand_ins:
        shutil.copy2(STANDINS / "batching.py", folder / _ONNXRUNTIME)
