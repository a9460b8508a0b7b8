"""A small network in FP32 and in FP16, a record of a plan of it, and ONNX Runtime in the place of TensorRT.

What answers here is the lowered graph, run by ONNX Runtime, with or without a defect: it shows what the gate makes of
answers, and nothing of TensorRT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from plansmith.compilers import onnx_files
from plansmith.data.reference import store_case
from plansmith.records.engine import BuildSpec, Engine, Gpu, OptimizationProfile, Plan
from plansmith.records.model import AxisRange, EngineKind, InputRange, OnnxModel, Precision, Recipe, ReferenceSet
from plansmith.records.validation import ValidationReport
from plansmith.validation.coverage import UNTRIED_KERNELS
from plansmith.validation.plan_gate import PlanCandidate, validate_plan
from plansmith.validation.profile_inputs import every_profile

from .graphs import silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

WORDS, WIDTH = 40, 8
SHAPES = {"single": (1, 5), "traced": (2, 7), "min": (1, 2), "opt": (3, 6), "max": (6, 12)}
L4 = Gpu(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30)
Change = Callable[["Arrays", int], "Arrays"]


def write_network(path: Path, dtype: type[np.generic] = np.float32, *, gain: float = 1.0) -> None:
    """Embeddings, zero where the mask is, through a dense layer: `hidden` of every token and `pooled` of each text."""
    rng = np.random.default_rng(5)
    table, dense = rng.normal(size=(WORDS, WIDTH)), gain * rng.normal(size=(WIDTH, WIDTH))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["shown"], to=kind),
        helper.make_node("Unsqueeze", ["shown", "last"], ["mask"]),
        helper.make_node("Mul", ["embedded", "mask"], ["masked"]),
        helper.make_node("MatMul", ["masked", "dense"], ["mixed"]),
        helper.make_node("Tanh", ["mixed"], ["bounded"]),
        helper.make_node("ReduceSum", ["bounded", "middle"], ["summed"], keepdims=0),
        helper.make_node("Cast", ["bounded"], ["hidden"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["summed"], ["pooled"], to=TensorProto.FLOAT),
    ]
    axes = ["batch", "sequence"]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")],
        [
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*axes, WIDTH]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [
            numpy_helper.from_array(table.astype(dtype), "table"),
            numpy_helper.from_array(dense.astype(dtype), "dense"),
            numpy_helper.from_array(np.array([-1]), "last"),
            numpy_helper.from_array(np.array([1]), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def make_feed(batch: int, length: int) -> Arrays:
    """Texts of which every second one ends early."""
    mask = np.ones((batch, length), np.int64)
    mask[1::2, max(1, length // 2) :] = 0
    ids = np.arange(batch * length).reshape(batch, length) * 7 % (WORDS - 1) + 1
    return {"input_ids": ids * mask, "attention_mask": mask}


def answer_of(path: Path, feed: Mapping[str, NDArray[Any]]) -> Arrays:
    """What a graph answers in ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feed)), strict=True))


def profile(name: str, low: tuple[int, int], usual: tuple[int, int], high: tuple[int, int]) -> OptimizationProfile:
    """A profile whose inputs all have the same shapes."""
    input_range = InputRange(min=low, opt=usual, max=high)
    return OptimizationProfile(name=name, shapes=dict.fromkeys(("input_ids", "attention_mask"), input_range))


WHOLE = profile("default", (1, 2), (3, 6), (6, 12))


def plan_record(gpu: Gpu = L4) -> Plan:
    """A record that looks like one of a plan; nothing was built."""
    return Plan(
        file="model.plan",
        bytes=1,
        gpu=gpu,
        tensorrt="10.16.1.11",
        builder="api",
        seconds=1,
        peak_host_bytes=None,
        peak_device_bytes=None,
        timing_cache="of the tests",
        tensors=(),
        profile_bytes=(),
        layers_file="",
        log="",
        reproduce="",
    )


@dataclass
class Bench:
    """The network in a folder, with its reference, and the gate for plans of it.

    `requests` holds the shapes that the stand-in was asked about, by profile.
    """

    folder: Path
    precision: Precision = Precision.FP16
    profiles: tuple[OptimizationProfile, ...] = (WHOLE,)
    gain: float = 1.0
    requests: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        write_network(self.folder / "model.onnx")
        write_network(self.lowered, np.float16 if self.precision is Precision.FP16 else np.float32, gain=self.gain)

    @property
    def lowered(self) -> Path:
        return self.folder / "lowered.onnx"

    def onnx(self) -> OnnxModel:
        cases = []
        for name, (batch, length) in SHAPES.items():
            feed = make_feed(batch, length)
            axes = {"batch": batch, "sequence": length}
            cases.append(
                store_case(name, axes, feed, answer_of(self.folder / "model.onnx", feed), self.folder / "reference")
            )
        return OnnxModel(
            components={"model": onnx_files.describe(self.folder / "model.onnx")},
            axes={"batch": AxisRange(min=1, opt=3, max=6), "sequence": AxisRange(min=2, opt=6, max=12)},
            mask_input="attention_mask",
            exporter="torchscript",
            attempts=(),
            precision=Precision.FP32,
            reference=ReferenceSet(runtime="ONNX Runtime", data="numbers", cases=tuple(cases)),
        )

    def engine(self, **build: Any) -> Engine:
        return Engine(
            kind=EngineKind.TENSORRT,
            components={"model": onnx_files.describe(self.lowered)},
            precision=self.precision,
            options={},
            toolchain={"tensorrt": "10.16.1.11"},
            build=BuildSpec(profiles=self.profiles, **build),
            plans={"8.9": plan_record()},
        )

    def recipe(self) -> Recipe | None:
        if self.precision is Precision.FP32:
            return None
        return Recipe(
            precision=self.precision,
            method="FP16",
            engine=EngineKind.TENSORRT,
            lowered={"MatMul": 1},
            kept=(),
            settings={},
            calibration="",
            calibration_samples=0,
            not_validated=(UNTRIED_KERNELS[self.precision], "inputs that nobody has seen"),
        )

    def stand_in(self, path: Path | None = None, change: Change | None = None) -> Callable[..., Arrays]:
        """ONNX Runtime, which refuses what is outside of the profile, as TensorRT does; and a defect in its answers."""
        component = onnx_files.describe(self.lowered)

        def ask(feed: Mapping[str, NDArray[Any]], place: int) -> Arrays:
            allowed = every_profile(self.profiles, component)[place].shapes
            for name, input_range in allowed.items():
                sizes = zip(input_range.min, feed[name].shape, input_range.max, strict=True)
                assert all(low <= size <= high for low, size, high in sizes), "outside of the profile"
            self.requests.append((place, feed["input_ids"].shape))
            answer = answer_of(path or self.lowered, feed)
            return change(answer, place) if change else answer

        return ask

    def judge(
        self,
        path: Path | None = None,
        change: Change | None = None,
        *,
        build: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> ValidationReport:
        """What the gate says of a stand-in that runs a graph, the lowered one if none is given, with a defect."""
        candidate = PlanCandidate(
            self.engine(**(build or {})), "8.9", self.stand_in(path, change), self.lowered, self.recipe()
        )
        arguments: dict[str, Any] = {"overrides": {}, "progress": silent, **more}
        return validate_plan(candidate, self.onnx(), self.folder, **arguments)
