"""A GPU and a graph that are made up, and specs that ask for everything of them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt

from plansmith.compilers.trt.api import run
from plansmith.records.engine import BuildRequest, BuildSpec, Gpu, OptimizationProfile
from plansmith.records.model import InputRange
from plansmith.testing import Fakes

Answers = dict[str, dict[str, Any]]


def ranges(smallest: tuple[int, ...], usual: tuple[int, ...], largest: tuple[int, ...]) -> InputRange:
    return InputRange(min=smallest, opt=usual, max=largest)


SHORT = OptimizationProfile(
    name="short",
    shapes={"ids": ranges((1, 8), (4, 8), (8, 16)), "x[0]": ranges((1, 3), (4, 3), (8, 3))},
    values={"size": ranges((8, 8), (16, 16), (32, 32))},
)
EVERYTHING = BuildSpec(
    memory_pools={"workspace": 1 << 30, "tactic_shared_memory": 1 << 16},
    optimization_level=5,
    sparsity=True,
    version_compatible=True,
    exclude_lean_runtime=True,
    hardware_compatibility="ampere_plus",
    strip_weights=True,
    max_aux_streams=2,
    tiling="full",
    formats={"x[0]": "chw32", "logits": "chw"},
    editable_timing_cache=True,
    error_on_timing_cache_miss=True,
    profiles=(SHORT, SHORT.model_copy(update={"name": "long"})),
)
NOTHING = BuildSpec(profiles=())


def request_for(folder: Path, spec: BuildSpec, *, timing_cache: str = "", seconds: float = 600) -> BuildRequest:
    return BuildRequest(
        graph="/graph/model.onnx",
        out=str(folder),
        spec=spec,
        gpu=Gpu(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30),
        trtexec="",
        timing_cache=timing_cache,
        deadline_seconds=seconds,
    )


class MadeUp(Fakes):
    """Fakes of a graph with an input of each kind: it varies, holds a shape, is fixed, and has a pattern for a name.

    The plan has one input, "ids", and one output, "logits". `tensors`: the graph's, the output last.
    """

    def __init__(self) -> None:
        super().__init__(tensorrt)
        self.say()
        shapes = {"ids": (-1, -1), "size": (2,), "x[0]": (-1, 3), "fixed": (2, 2), "logits": (-1, 5)}
        self.tensors = [
            self.make("ITensor", name=name, shape=shape, is_shape_tensor=name == "size")
            for name, shape in shapes.items()
        ]

    def say(self, **more: dict[str, Any]) -> None:
        """Answer as usual, and `more` by class."""
        defaults = self._usual()
        self.answers = {name: defaults.get(name, {}) | more.get(name, {}) for name in defaults.keys() | more.keys()}

    def memory(self, content: bytes = b"") -> Any:
        return self.make("IHostMemory", content=content)

    def flags(self) -> set[Any]:
        """The builder's flags that were set."""
        return {call.arguments["flag"] for call in self.calls if call[:2] == ("IBuilderConfig", "set_flag")}

    def log(self, severity: str, line: str) -> None:
        """Have TensorRT write a line into the logger that the first object was made with."""
        self.named("__init__")[0]["logger"].log(getattr(tensorrt.ILogger.Severity, severity), line)

    def _usual(self) -> Answers:
        mode = tensorrt.TensorIOMode
        return {
            "Builder": {"build_serialized_network": lambda _network, _config: self.memory(b"plan")},
            "INetworkDefinition": {
                "num_inputs": 4,
                "num_outputs": 1,
                "get_input": lambda index: self.tensors[index],
                "get_output": lambda _index: self.tensors[-1],
            },
            "OnnxParser": {"num_errors": 0},
            "ITimingCache": {"serialize": lambda: self.memory(b"measured")},
            "ICudaEngine": {
                "num_io_tensors": 2,
                "num_optimization_profiles": 2,
                "get_tensor_name": lambda index: ("ids", "logits")[index],
                "get_tensor_mode": lambda name: mode.INPUT if name == "ids" else mode.OUTPUT,
                "get_tensor_dtype": lambda _name: tensorrt.DataType.FLOAT,
                "get_tensor_shape": lambda _name: (-1, 3, 2, 2),
                "get_tensor_format": lambda _name, _profile: tensorrt.TensorFormat.LINEAR,
                "is_shape_inference_io": lambda _name: False,
                "get_aliased_input_tensor": lambda _name: None,
                "refittable": True,
                "serialize_with_config": lambda _config: self.memory(b"whole"),
            },
            "EngineInspector": {"get_engine_information": json.dumps({"Layers": [], "Bindings": []})},
        }


class Execution:
    """Answers of a plan that gives back, in a format, what lies at its input's address; `data`: the last of that."""

    def __init__(self, fakes: MadeUp, shape: tuple[int, ...], form: str = "LINEAR") -> None:
        self._fakes, self._shape = fakes, shape
        self._bytes = run.packed(np.zeros(shape, np.float32), form).nbytes
        self._form = getattr(tensorrt.TensorFormat, form)
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self.data = b""

    def answers(self) -> Answers:
        engine = {
            "get_tensor_format": lambda _name, _profile: self._form,
            "get_tensor_dtype": lambda _name: tensorrt.DataType.FLOAT,
            "get_tensor_vectorized_dim": lambda _name: 1,
            "get_tensor_components_per_element": lambda _name: 16,
        }
        return {
            "ICudaEngine": engine,
            "IExecutionContext": {
                "get_tensor_shape": lambda _name: self._shape,
                "engine": self._fakes.make("ICudaEngine", **engine),
                "set_tensor_address": _keeping(self._addresses),
                "set_output_allocator": _keeping(self._allocators),
                "get_tensor_address": lambda name: self._addresses.get(name, 0),
                "execute_async_v3": lambda _stream: self._run(),
            },
        }

    def _run(self) -> bool:
        allocator = self._allocators["logits"]
        address = allocator.reallocate_output("logits", 0, self._bytes, 1)
        self.data = ctypes.string_at(self._addresses["ids"], self._bytes)
        ctypes.memmove(address, self.data, self._bytes)
        allocator.notify_shape("logits", self._shape)
        for record in self._fakes.named("profiler"):
            record["value"].report_layer_time("matmul", 1.0)
            record["value"].report_layer_time("matmul", 2.0)
        return True


def _keeping(store: dict[str, Any]) -> Callable[[str, Any], bool]:
    def keep(name: str, value: Any) -> bool:
        store[name] = value
        return True

    return keep
