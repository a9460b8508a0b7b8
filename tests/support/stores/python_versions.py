"""Releases for Triton's Python backend, which load fast: each answers its version, as those of `triton.versions` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.records.release import MODEL_FOLDER, PublishedVersion
from plansmith.triton.repository.repository import ModelRepository

from ..faults.packages import draft_of
from ..triton.versions import CONFIG, INTERFACE, MODEL

WHY_BROKEN = "there are no weights"

BROKEN = f"raise RuntimeError({WHY_BROKEN!r})"
DEADLY = "import signal; os.kill(os.getppid(), signal.SIGKILL)"
"""What a version does when it is loaded: it does not load, or takes the whole server down."""

_MODEL_FILE = "model.py"
_CONFIG = "".join(
    line
    for line in CONFIG.replace('"onnxruntime"', '"python"').replace("model.onnx", _MODEL_FILE).splitlines(keepends=True)
    if "intra_op" not in line
)
_CODE = """
import os, sys
sys.path[:0] = os.environ[{packages!r}].split(":")
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, arguments):
        {initialize}

    def execute(self, requests):
        return [self._answer(triton.get_input_tensor_by_name(one, "x").as_numpy().shape[0]) for one in requests]

    def _answer(self, rows):
        whole = triton.Tensor("whole", np.full((rows, 1), {number}, np.int64))
        three = triton.Tensor("three", np.full((rows, 3), {number}, np.float32))
        return triton.InferenceResponse([whole, three])
"""


def python_release(
    repository: ModelRepository, folder: Path, *, initialize: str = "pass", model: str = MODEL, latest: int = 1
) -> PublishedVersion:
    """Publish the next version of the model into a repository.

    Args:
        repository: takes it.
        folder: takes the files that it is made of.
        initialize: what it does when it is loaded.
        model: its name.
        latest: how many of the versions Triton serves, by the policy.
    """
    number = max([0, *repository.versions(model)]) + 1
    package = folder / f"{model}-{number}"
    (package / MODEL_FOLDER).mkdir(parents=True)
    code = _CODE.format(initialize=initialize, number=number, packages=SITE_VARIABLE)
    (package / MODEL_FOLDER / _MODEL_FILE).write_text(code)
    (package / "config.pbtxt").write_text(_CONFIG)
    draft = draft_of(package, model=model)
    fields: dict[str, Any] = {"model_files": (_MODEL_FILE,), "interface": INTERFACE, "max_batch_size": 8}
    spec = {"triton": {"version_policy": {"latest": {"num_versions": latest}}}}
    draft = draft.model_copy(update={"spec": spec, "package": draft.package.model_copy(update=fields)})
    return repository.publish(
        draft,
        {entry.path: package / entry.path for entry in draft.files},
        {},
        allow_interface_change=False,
        force=False,
    )
