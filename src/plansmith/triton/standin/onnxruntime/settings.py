"""What Triton's ONNX Runtime backend reads from `parameters` and `optimization`, with its own notion of legal values.

The source is `src/onnxruntime.cc` of triton-inference-server/onnxruntime_backend. Numbers are read as its C++ reads
them: leading digits count, what follows them is ignored. Parameters that it does not name are ignored there and here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the stub finds the module beside this one, a type checker in the package
    from collections.abc import Callable

    from plansmith.triton.standin.onnxruntime.contract import Config, Refused
else:
    from contract import Refused

DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


@dataclass(frozen=True)
class Settings:
    """One session's settings.

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
    """Read and check the settings of a model.

    Raises:
        Refused: a value is illegal, or an accelerator or one of its parameters is unknown.
    """
    given = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    optimization = config.get("optimization", {})
    _check_accelerators(optimization.get("execution_accelerators", {}))
    execution_mode = _whole_number(given.get("execution_mode", "0"))
    if execution_mode not in {0, 1}:
        raise Refused(f"execution_mode is {execution_mode}, the expected values are 0 and 1")
    _truth(given.get("share_session_between_instances", "false"))
    return Settings(
        graph_level=optimization.get("graph", {}).get("level", 0),
        parallel=execution_mode == 1,
        intra_op_threads=max(0, _whole_number(given.get("intra_op_thread_count", "0"))),
        inter_op_threads=max(0, _whole_number(given.get("inter_op_thread_count", "0"))),
        memory_arena=_truth(given.get("enable_mem_arena", "true")),
        memory_pattern=_truth(given.get("enable_mem_pattern", "true")),
        session_entries={key: value for key, value in given.items() if key == DEVICE_ALLOCATOR},
        run_entries={key: value for key, value in given.items() if key == ARENA_SHRINKAGE},
    )


def _whole_number(text: str) -> int:
    digits = re.match(r"\s*[+-]?\d+", text)
    if digits is None:
        raise Refused(f"failed to convert '{text}' to an integral number")
    return int(digits.group())


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "on", "1", "false", "off", "0"}:
        raise Refused(f"failed to convert '{text}' to a boolean")
    return text.lower() in {"true", "on", "1"}


def _precision(text: str) -> None:
    if text not in {"FP32", "FP16", "BF16", "INT8"}:
        raise Refused(f"unsupported precision mode '{text}' is requested")


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
_CUDA_TRUTHS = {"do_copy_in_default_stream", "use_ep_level_unified_stream"}


def _check_accelerators(accelerators: dict[str, Any]) -> None:
    """Check both lists.

    The backend reads the GPU list for GPU instances only. There are none here, so it is read for every instance: a
    configuration whose instances alone were changed to the CPU is refused for what a GPU server would refuse.
    """
    for accelerator in accelerators.get("gpu_execution_accelerator", []):
        parameters = accelerator.get("parameters", {})
        if accelerator["name"] == "tensorrt":
            _check_tensorrt(parameters)
        elif accelerator["name"] == "cuda":
            for key in _CUDA_TRUTHS & parameters.keys():
                _truth(parameters[key])
        else:
            raise Refused(f"unknown Execution Accelerator '{accelerator['name']}' is requested for the GPU")
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        if accelerator["name"] == "openvino":
            raise Refused("the stand-in for the ONNX Runtime backend does not serve through OpenVINO")
        raise Refused(f"unknown Execution Accelerator '{accelerator['name']}' is requested for the CPU")


def _check_tensorrt(parameters: dict[str, str]) -> None:
    for key, value in parameters.items():
        if key not in _TENSORRT_PARAMETERS:
            raise Refused(f"unknown parameter '{key}' is provided for the TensorRT Execution Accelerator")
        _TENSORRT_PARAMETERS[key](value)
