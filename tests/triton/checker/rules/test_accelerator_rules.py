"""Accelerators of the ONNX Runtime backend that it refuses, or that do not do what was meant, are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, helper

from plansmith.config.targets import load_target

from ....support.checker.backend_rules import broken, findings
from ....support.checker.graphs import content, graph

if TYPE_CHECKING:
    from ....support.checker.written import Written

PLAIN = """backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
ON_GPU = PLAIN + "instance_group { kind: KIND_GPU count: 1 }\n"
WHOLE = {
    "trt_engine_cache_enable": "true",
    "trt_engine_cache_path": "/tmp/cache",
    "trt_profile_min_shapes": "x:1x3",
    "trt_profile_opt_shapes": "x:4x3",
    "trt_profile_max_shapes": "x:8x3",
}
FIXED = graph(inputs={"x": (TensorProto.FLOAT, [4, 3])}, outputs={"y": (TensorProto.FLOAT, [4, 3])})


def accelerated(name: str, device: str = "gpu", **parameters: str) -> str:
    written = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    inner = f'{device}_execution_accelerator {{ name: "{name}" {written} }}'
    return f"optimization {{ execution_accelerators {{ {inner} }} }}\n"


def tensorrt(**changes: str) -> str:
    return ON_GPU + accelerated("tensorrt", **{key: value for key, value in {**WHOLE, **changes}.items() if value})


def parameter(key: str, value: str) -> str:
    return f'{PLAIN}parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def of(written: Written, config: str, model: onnx.ModelProto | None = None, target: str = "") -> set[str]:
    written.add("m", config, {"1/model.onnx": content(model or graph())})
    return broken(written.root, target=load_target(target) if target else None)


MISTAKES = {
    "an unknown accelerator (R22)": (ON_GPU + accelerated("tensorrtx"), "accelerator"),
    "an unknown key (R22)": (tensorrt(trt_fp16_enable="1"), "accelerator"),
    "a precision that is none": (tensorrt(precision_mode="FP8"), "accelerator"),
    "a size that is no number": (tensorrt(max_workspace_size_bytes="big"), "accelerator"),
    "a switch that is none": (ON_GPU + accelerated("cuda", do_copy_in_default_stream="perhaps"), "accelerator"),
    "an accelerator of GPUs for CPUs": (PLAIN + accelerated("tensorrt", "cpu"), "accelerator"),
    "an accelerator that is not used": (
        f"{PLAIN}instance_group {{ kind: KIND_CPU count: 1 }}\n{accelerated('tensorrt', **WHOLE)}",
        "accelerator-unused",
    ),
    "a profile without its largest shapes": (tensorrt(trt_profile_max_shapes=""), "accelerator-profile"),
    "a profile of another name": (tensorrt(trt_profile_max_shapes="z:8x3"), "accelerator-profile"),
    "a profile of another rank": (
        tensorrt(**{key: "x:1x1x3" for key in WHOLE if "profile" in key}),
        "accelerator-profile",
    ),
    "a profile that is not in order": (tensorrt(trt_profile_opt_shapes="x:9x3"), "accelerator-profile"),
    "a profile that cannot be read": (tensorrt(trt_profile_opt_shapes="x=4x3"), "accelerator-profile"),
    "a profile of unlike shapes": (tensorrt(trt_profile_opt_shapes="x:4x3x3"), "accelerator-profile"),
    "no profile for what varies": (
        tensorrt(**{key: "" for key in WHOLE if "profile" in key}),
        "accelerator-shapes",
    ),
    "builds that are not kept": (tensorrt(trt_engine_cache_enable="false"), "accelerator-cache"),
    "an execution mode that is none": (parameter("execution_mode", "2"), "parameter"),
    "a number of threads that is none": (parameter("intra_op_thread_count", "many"), "parameter"),
    "a search that is none, on GPUs": (
        parameter("cudnn_conv_algo_search", "3") + "instance_group { kind: KIND_GPU count: 1 }",
        "parameter",
    ),
    "a switch of memory that is none": (parameter("enable_mem_arena", "perhaps"), "parameter"),
}


@pytest.mark.parametrize(("config", "rule"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_found_alone(config: str, rule: str, written: Written) -> None:
    """A mistake is found, and no other."""
    assert of(written, config) == {f"onnxruntime.{rule}"}


SOUND = {
    "TensorRT with a profile and a cache": (tensorrt(), None),
    "TensorRT for shapes that are fixed": (
        tensorrt(**{key: "" for key in WHOLE if "profile" in key})
        .replace("max_batch_size: 8", "")
        .replace("dims: [ 3 ]", "dims: [ 4, 3 ]"),
        FIXED,
    ),
    "a precision of TensorRT's": (tensorrt(precision_mode="FP16"), None),
    "CUDA, which takes any key": (ON_GPU + accelerated("cuda", gpu_mem_limit="1", enable_cuda_graph="1"), None),
    "OpenVINO": (PLAIN + accelerated("openvino", "cpu"), None),
    "no kind, which is a GPU's where there is one": (PLAIN + accelerated("tensorrt", **WHOLE), None),
    "an execution mode": (parameter("execution_mode", "1"), None),
    "a search that is none, which is not read on CPUs": (
        parameter("cudnn_conv_algo_search", "3") + "instance_group { kind: KIND_CPU count: 1 }",
        None,
    ),
    "a search": (parameter("cudnn_conv_algo_search", "2"), None),
    "a parameter that the backend does not read": (parameter("note", "anything"), None),
}


@pytest.mark.parametrize(("config", "model"), SOUND.values(), ids=SOUND.keys())
def test_what_loads_is_passed(config: str, model: onnx.ModelProto | None, written: Written) -> None:
    assert of(written, config, model) == set()


def profile(minimum: str, usual: str, most: str) -> dict[str, str]:
    """The three shapes of a profile."""
    keys = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
    return dict(zip(keys, (minimum, usual, most), strict=True))


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        (profile("x:1x3,inner:1x3", "x:4x3,inner:4x3", "x:8x3,inner:8x3"), set()),
        (profile("inner:1x3", "inner:4x3", "inner:8x3"), {"onnxruntime.accelerator-profile-names"}),
        (profile("x:1x3,q:1", "x:4x3,q:1", "x:8x3,q:1"), {"onnxruntime.accelerator-profile-names"}),
    ],
    ids=["an input and what flows inside", "what flows inside alone", "what is not there"],
)
def test_profile_may_cover_graph_part(settings: dict[str, str], rules: set[str], written: Written) -> None:
    """A profile may be for a part of the graph."""
    model = graph(nodes=[helper.make_node("Relu", ["x"], ["inner"])])
    assert of(written, tensorrt(**settings), model) == rules
    assert {finding.severity for finding in findings(written.root)} <= {"warning"}


def test_gpu_accelerator_unused_without_gpus(written: Written) -> None:
    """An accelerator of GPUs is not used by a target without any."""
    config = PLAIN + accelerated("tensorrt", **WHOLE)
    assert of(written, config, target="triton-26.03-cpu") == {"onnxruntime.accelerator-unused"}


def test_tensorrt_11_needs_knowing_runtime(written: Written) -> None:
    """TensorRT 11 wants an ONNX Runtime that knows it."""
    old = load_target("triton-26.05").model_copy(update={"tensorrt": "11.0.0.114"})
    assert of(written, tensorrt(), target="triton-26.08") == set()
    assert broken(written.root, target=old) == {"onnxruntime.accelerator-version"}
    assert broken(written.root, target=load_target("triton-26.03")) == set()


def test_tensorrt_11_precision_from_graph(written: Written) -> None:
    """For TensorRT 11, the graph is the precision."""
    assert of(written, tensorrt(precision_mode="FP16"), target="triton-26.08") == {"onnxruntime.accelerator-precision"}
    assert broken(written.root, target=load_target("triton-26.03")) == set()


def test_finding_names_key_line(written: Written) -> None:
    """A finding names the line of the key."""
    written.add(
        "m", tensorrt(trt_fp16_enable="1").replace("parameters", "\nparameters"), {"1/model.onnx": content(graph())}
    )
    (finding,) = findings(written.root)
    assert "trt_fp16_enable" in (written.root / "m" / "config.pbtxt").read_text().splitlines()[finding.line - 1]
