"""Settings that Triton's ONNX Runtime backend reads from `parameters` and `optimization`, with its own validity rules.

The source is `src/onnxruntime.cc` of triton-inference-server/onnxruntime_backend. Numbers are read as its C++ reads
them: leading digits count, what follows them is ignored. Parameters that it does not name are ignored there and here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from plansmith.triton.standin.onnxruntime.contract import Config

DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"

_CUDA_TRUTHS = {"do_copy_in_default_stream", "use_ep_level_unified_stream"}


class Illegal(ValueError):
    """Invalid setting, which the backend does not accept."""


@dataclass(frozen=True)
class Settings:
    """Session settings of ONNX Runtime.

    Args:
        graph_level: `optimization.graph.level`; the backend knows -1, 1 and 2, all others mean every optimization.
        parallel: run independent branches at the same time.
        intra_op_threads: 0 leaves it to ONNX Runtime.
        inter_op_threads: 0 leaves it to ONNX Runtime.
        memory_arena: keep freed memory for the next run.
        memory_pattern: plan the memory of one run ahead.
        session_entries: configuration entries of the session.
        run_entries: configuration entries of each run.
    """

    graph_level: int
    parallel: bool
    intra_op_threads: int
    inter_op_threads: int
    memory_arena: bool
    memory_pattern: bool
    session_entries: dict[str, str]
    run_entries: dict[str, str]


def settings_from_config(config: Config) -> Settings:
    """Read and validate the settings of a model.

    Raises:
        Illegal: a value is illegal, or an accelerator or one of its parameters is unknown.
    """
    values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    optimization = config.get("optimization", {})
    _check_accelerators(optimization.get("execution_accelerators", {}))
    for key, value in values.items():
        check_parameter(key, value)
    return Settings(
        graph_level=optimization.get("graph", {}).get("level", 0),
        parallel=_whole_number(values.get("execution_mode", "0")) == 1,
        intra_op_threads=max(0, _whole_number(values.get("intra_op_thread_count", "0"))),
        inter_op_threads=max(0, _whole_number(values.get("inter_op_thread_count", "0"))),
        memory_arena=_truth(values.get("enable_mem_arena", "true")),
        memory_pattern=_truth(values.get("enable_mem_pattern", "true")),
        session_entries={key: value for key, value in values.items() if key == DEVICE_ALLOCATOR},
        run_entries={key: value for key, value in values.items() if key == ARENA_SHRINKAGE},
    )


def _whole_number(text: str) -> int:
    digits = re.match(r"\s*[+-]?\d+", text)
    if digits is None:
        raise Illegal(f"failed to convert '{text}' to an integral number")
    return int(digits.group())


def is_true(text: str) -> bool:
    """Whether a Boolean setting is on; empty means off."""
    return text.lower() in {"true", "on", "1"}


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "on", "1", "false", "off", "0"}:
        raise Illegal(f"failed to convert '{text}' to a boolean")
    return is_true(text)


def _precision(text: str) -> None:
    if text not in {"FP32", "FP16", "BF16", "INT8"}:
        raise Illegal(f"unsupported precision mode '{text}' is requested")


_TENSORRT_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "precision_mode": _precision,
    **dict.fromkeys(
        (
            "max_workspace_size_bytes",
            "trt_auxiliary_streams",
            "trt_builder_optimization_level",
            "trt_dla_core",
            "trt_ep_context_embed_mode",
            "trt_max_partition_iterations",
            "trt_min_subgraph_size",
        ),
        _whole_number,
    ),
    **dict.fromkeys(
        (
            "int8_use_native_calibration_table",
            "trt_build_heuristics_enable",
            "trt_context_memory_sharing_enable",
            "trt_cuda_graph_enable",
            "trt_detailed_build_log",
            "trt_dla_enable",
            "trt_dump_ep_context_model",
            "trt_dump_subgraphs",
            "trt_engine_cache_enable",
            "trt_force_sequential_engine_build",
            "trt_force_timing_cache",
            "trt_layer_norm_fp32_fallback",
            "trt_sparsity_enable",
            "trt_timing_cache_enable",
        ),
        _truth,
    ),
    **dict.fromkeys(
        (
            "int8_calibration_table_name",
            "trt_engine_cache_path",
            "trt_engine_cache_prefix",
            "trt_ep_context_file_path",
            "trt_extra_plugin_lib_paths",
            "trt_profile_max_shapes",
            "trt_profile_min_shapes",
            "trt_profile_opt_shapes",
            "trt_tactic_sources",
            "trt_timing_cache_path",
        ),
        str,
    ),
}


def _mode(text: str) -> None:
    if _whole_number(text) not in {0, 1}:
        raise Illegal(f"execution_mode is {text}, the expected values are 0 and 1")


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "execution_mode": _mode,
    **dict.fromkeys(("intra_op_thread_count", "inter_op_thread_count"), _whole_number),
    **dict.fromkeys(("enable_mem_arena", "enable_mem_pattern", "share_session_between_instances"), _truth),
}


def check_parameter(key: str, value: str) -> None:
    """Check that the backend accepts one of the model's `parameters`; it ignores those with unknown names.

    Raises:
        Illegal: it does not.
    """
    _PARAMETERS.get(key, str)(value)


def check_gpu_accelerator(name: str, key: str = "", value: str = "") -> None:
    """Check that a GPU accelerator exists and accepts one of its parameters; without a key, check only its name.

    Raises:
        Illegal: there is not, or it does not.
    """
    if name == "tensorrt":
        if key and key not in _TENSORRT_PARAMETERS:
            raise Illegal(f"unknown parameter '{key}' is provided for the TensorRT Execution Accelerator")
        _TENSORRT_PARAMETERS.get(key, str)(value)
    elif name != "cuda":
        raise Illegal(f"unknown Execution Accelerator '{name}' is requested for the GPU")
    elif key in _CUDA_TRUTHS:
        _truth(value)


def check_cpu_accelerator(name: str) -> None:
    """Check that a CPU accelerator exists.

    Raises:
        Illegal: there is not.
    """
    if name != "openvino":
        raise Illegal(f"unknown Execution Accelerator '{name}' is requested for the CPU")


def _check_accelerators(accelerators: dict[str, Any]) -> None:
    """Check the CPU and GPU accelerator lists.

    The backend reads the GPU list for GPU instances only. There are none here, so it is read for every instance: a
    configuration whose instances alone were changed to the CPU is refused for what a GPU server would refuse.
    """
    for accelerator in accelerators.get("gpu_execution_accelerator", []):
        check_gpu_accelerator(accelerator["name"])
        for key, value in accelerator.get("parameters", {}).items():
            check_gpu_accelerator(accelerator["name"], key, value)
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        check_cpu_accelerator(accelerator["name"])
        raise Illegal("the stand-in for the ONNX Runtime backend does not serve through OpenVINO")
