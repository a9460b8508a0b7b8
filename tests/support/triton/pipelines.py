"""Ensembles of two small Python models, made by hand: every answer tells the number that its first part has."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.records.model import Tensor
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import MODEL_FOLDER, Interface, Manifest, Member, PublishedVersion
from plansmith.system.digest import digest_of_files
from plansmith.triton.repository.repository import ModelRepository, Servers

from ..faults.packages import draft_of, file_entries
from .versions import INTERFACE, MODEL

NUMBER_PART = "number"
SUPPORT_FILE = "notes.txt"
NUMBER = Tensor(name="number", dtype="float32", dims=("batch", 1))

_HEAD = f"""
import os, sys
sys.path[:0] = os.environ[{SITE_VARIABLE!r}].split(":")
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        return [triton.InferenceResponse(self.answer(self.only_input(one))) for one in requests]
"""
_NUMBER = """
    def initialize(self, arguments):
        {initialize}

    def only_input(self, request):
        return triton.get_input_tensor_by_name(request, "x").as_numpy()

    def answer(self, x):
        return [triton.Tensor("number", np.full((len(x), 1), {number}, np.float32))]
"""
_MODEL = """
    def only_input(self, request):
        return triton.get_input_tensor_by_name(request, "number").as_numpy()

    def answer(self, number):  # {salt}
        whole, three = number.astype(np.int64), np.repeat(number, 3, axis=1)
        return [triton.Tensor("whole", whole), triton.Tensor("three", three)]
"""
_OUTPUTS = """
output [ { name: "whole" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "three" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
_PART = """
backend: "python"
max_batch_size: 8
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_NUMBER_CONFIG = f"""{_PART}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "number" data_type: TYPE_FP32 dims: [ 1 ] }} ]
"""
_MODEL_CONFIG = f"""{_PART}
input [ {{ name: "number" data_type: TYPE_FP32 dims: [ 1 ] }} ]
{_OUTPUTS}"""
_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
version_policy { latest { num_versions: 1 } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
%s
ensemble_scheduling { step [
  { model_name: "%s" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "number" value: "number" } },
  { model_name: "%s" model_version: -1
    input_map { key: "number" value: "number" }
    output_map { key: "whole" value: "%s" } output_map { key: "three" value: "three" } }
] }
"""


def write_pipeline(
    package: Path, number: int, *, model: str = MODEL, salt: str = "", initialize: str = "pass", whole: str = "whole"
) -> Manifest:
    """Lay out a release with two parts, and draft its manifest.

    Args:
        package: takes its files.
        number: what every answer tells.
        model: its name.
        salt: another one makes another part of the model itself.
        initialize: what the first part does when it is loaded.
        whole: what the ensemble calls the model's output; another name is one that it does not promise.
    """
    members = (
        _write_part(
            package, model, NUMBER_PART, _NUMBER_CONFIG, _HEAD + _NUMBER.format(number=number, initialize=initialize)
        ),
        _write_part(package, model, MODEL_PART, _MODEL_CONFIG, _HEAD + _MODEL.format(salt=salt)),
    )
    (package / MODEL_FOLDER).mkdir()
    (package / MODEL_FOLDER / "pipeline.json").write_text(f'{{"number": {number}}}')
    (package / "config.pbtxt").write_text(_ENSEMBLE % (_OUTPUTS, *(member.model for member in members), whole))
    draft = draft_of(package, model=model)
    fields: dict[str, Any] = {
        "model_files": ("pipeline.json",),
        "interface": INTERFACE,
        "max_batch_size": 8,
        "members": members,
    }
    files = file_entries(package)
    package_record = draft.package.model_copy(update=fields)
    return draft.model_copy(
        update={"files": files, "package": package_record, "release_digest": digest_of_files(files)}
    )


def publish_pipeline(
    repository: ModelRepository,
    folder: Path,
    *,
    model: str = MODEL,
    salt: str = "",
    initialize: str = "pass",
    whole: str = "whole",
    servers: Servers | None = None,
) -> PublishedVersion:
    """Publish the next version of an ensemble, which answers its number.

    Args:
        repository: takes it.
        folder: takes the files that it is made of.
        model: its name.
        salt: as for `write_pipeline`, and so the two after it.
        initialize: see there.
        whole: see there.
        servers: have to load it.
    """
    number = max([0, *repository.versions(model)]) + 1
    package = folder / f"{model}-{number}"
    draft = write_pipeline(package, number, model=model, salt=salt, initialize=initialize, whole=whole)
    return publish_draft(repository, package, draft, servers=servers)


def publish_draft(
    repository: ModelRepository, package: Path, draft: Manifest, *, servers: Servers | None = None
) -> PublishedVersion:
    """Publish what was laid out."""
    return repository.publish(
        draft,
        {entry.path: package / entry.path for entry in draft.files},
        {},
        allow_interface_change=False,
        force=False,
        servers=servers,
    )


def _write_part(package: Path, model: str, part: str, config: str, code: str) -> Member:
    digest = hashlib.sha256((config + code).encode()).hexdigest()[:8]
    folder = package / "members" / part
    (folder / MODEL_FOLDER).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / SUPPORT_FILE).write_text(f"of {part}")
    (folder / MODEL_FOLDER / "model.py").write_text(code)
    own = Interface(inputs=(NUMBER,), outputs=INTERFACE.outputs)
    return Member(
        model=f"{model}.{part}.{digest}",
        part=part,
        folder=f"members/{part}",
        backend="python",
        model_files=("model.py",),
        support_files=(SUPPORT_FILE,),
        max_batch_size=8,
        interface=own if part == MODEL_PART else Interface(inputs=INTERFACE.inputs, outputs=(NUMBER,)),
    )


BROKEN = "raise RuntimeError('there are no words')"
