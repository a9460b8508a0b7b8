"""The zoo's graphs in every precision, made by the product and built by TensorRT-RTX; what differs, and why."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError
from plansmith.fleet.zoo.entries import ZooEntry, read_list, shipped_list
from plansmith.fleet.zoo.save import save
from plansmith.records.model import EngineKind
from plansmith.steps.context import start_stages
from plansmith.steps.model_steps import check_build, model_context

from ....support.tensorrt import rtx

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.xdist_group("rtx")]

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
OF_ALL = (
    *("audio-spectrogram-transformer", "bert", "bloom", "clip", "convnext", "deberta-v2", "detr", "dpt", "fnet"),
    *("funnel", "gemma3_text", "gpt2", "llama", "longformer", "mamba", "mask2former", "modernbert", "patchtst"),
    *("qwen3_moe", "segformer", "swinv2", "t5", "timm:convnext_atto_rms", "timm:gcvit_xxtiny", "timm:halonet_h1"),
    *("timm:maxvit_pico_rw_256", "timm:mobilenetv3_small_050", "vit", "videomae", "wav2vec2", "whisper", "xlnet"),
)
USUAL = ("bert", "convnext", "t5")
"""Of each kind one; `make soak` takes them all."""

DIFFERENT = {
    "dpt": "shape.cpp:175|codeGenerator.cpp|type.cpp",  # RTX's compiler fails within, on sizes or types
    "fnet": "no operator for node_DFT_21",  # a plugin of TensorRT's
    "qwen3_moe": "Unsupported reduction type",  # likewise, of ScatterElements
    "xlnet": "EyeLike makes an identity of a size that varies",  # the lint says so, and so does the parser
}
"""What is said of the models whose graphs are not built, and why."""


def entries() -> dict[str, ZooEntry]:
    """The first entry of the zoo for each name."""
    by_type: dict[str, ZooEntry] = {}
    for entry in read_list(shipped_list()):
        by_type.setdefault(entry.model_type or f"timm:{entry.timm}", entry)
    names = OF_ALL if os.environ.get("PLANSMITH_SOAK_BUILDS") else USUAL
    return {name: by_type[name] for name in names}


@pytest.mark.parametrize(("name", "entry"), entries().items(), ids=list(entries()))
def test_model_graphs_become_plans(name: str, entry: ZooEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs of a model become plans."""
    rtx.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    save(entry, tmp_path / "model")
    outcomes = {precision: ended(f"{entry.scheme}:./model", precision, tmp_path) for precision in PRECISIONS}
    expected = DIFFERENT.get(name, "")
    assert bool(outcomes["fp32"]) is bool(expected), outcomes
    assert not {
        precision: message
        for precision, message in outcomes.items()
        if message and not re.search(expected or "$^", message)
    }


def ended(source: str, precision: str, folder: Path) -> str:
    """Why a graph was not built; empty where it was, or where none was made: that others judge."""
    spec = ModelSpec.model_validate(
        {
            "source": source,
            "engine": EngineKind.TENSORRT,
            "precision": precision,
            "target": "triton-26.10",
            "artifacts": str(folder / "artifacts"),
            "tensorrt": {"check_build": True, "gpus": ["L4"], "deadline_minutes": 1},
        }
    )
    try:
        context = model_context(spec, folder, lambda: start_stages(spec, folder))
        with closing(context.stages):
            check = check_build(context)
    except PlansmithError as error:
        return error.message if error.step == "check_build" else ""
    return check.reason
