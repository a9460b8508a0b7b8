"""Names, the way without a GPU and the fakes, with the bindings of one version of TensorRT: test_contract.py runs this.

The fakes check how TensorRT is called; what they answer is made up, and no test says anything about it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import tensorrt

from plansmith.compilers.trt import api
from plansmith.compilers.trt.api import inspect as inspecting
from plansmith.compilers.trt.api.building import build
from plansmith.compilers.trt.api.probe import gpu_needed, version
from plansmith.compilers.trt.formats import DLA_ONLY, TAKES
from plansmith.errors import EnvironmentFault
from plansmith.records.engine import BuildSpec, MemoryPool, TensorFormat
from plansmith.testing import Fakes, signatures_of

from ....support.tensorrt.made_up import NOTHING, MadeUp, request_for


def chains(source: str) -> set[tuple[str, ...]]:
    """What a source takes from `tensorrt`: ("BuilderFlag", "TF32") for `tensorrt.BuilderFlag.TF32`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id == "tensorrt":
            found.add(tuple(parts))
    return found


def test_every_name_that_the_sources_take_from_tensorrt_is_there() -> None:
    named = set().union(*(chains(path.read_text()) for path in Path(api.__path__[0]).glob("*.py")))
    assert ("BuilderFlag", "REFIT_IDENTICAL") in named
    for chain in named:
        found: Any = tensorrt
        for part in chain:
            found = getattr(found, part)


def test_formats_are_for_the_tensors_that_the_bindings_say() -> None:
    names = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8", "INT64": "int64"}
    names["FP8"] = "float8_e4m3fn"
    told = tensorrt.TensorFormat.__doc__
    for form in get_args(TensorFormat):
        member = "LINEAR" if form == "chw" else form.upper()
        said = re.search(rf"\n  {member} :(.*?)(?=\n  [A-Z0-9_]+ :|\Z)", told, re.DOTALL)
        assert said is not None, member
        if form in DLA_ONLY:
            assert "DLA" in said[1], member
            continue
        rank = re.search(r"dimensions >= (\d)", said[1])
        bound = re.search(r"bound to ([A-Z0-9,/ and]+)", said[1])
        assert TAKES[form].rank == (int(rank[1]) if rank else 0), member
        assert set(TAKES[form].dtypes) == {names[one] for one in re.findall(r"[A-Z]+\d+", bound[1] if bound else "")}
        assert "DLA" not in said[1], member


def test_every_word_of_a_spec_has_its_member() -> None:
    fields = BuildSpec.model_fields
    words = {
        "TilingOptimizationLevel": get_args(fields["tiling"].annotation),
        "ProfilingVerbosity": get_args(fields["verbosity"].annotation),
        "HardwareCompatibilityLevel": get_args(fields["hardware_compatibility"].annotation),
        "MemoryPoolType": get_args(MemoryPool),
        "TensorFormat": set(get_args(TensorFormat)) - {"chw"} | {"linear"},
    }
    for kind, said in words.items():
        assert said
        assert {word.upper() for word in said} <= set(getattr(tensorrt, kind).__members__)
    assert set(inspecting.DTYPES) == set(tensorrt.DataType.__members__)


def test_the_bindings_alone_do_where_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = sys.modules["tensorrt"]
    monkeypatch.delitem(sys.modules, "tensorrt")
    assert version() == bindings.__version__
    assert sys.modules["tensorrt"] is bindings


def test_without_a_gpu_the_real_module_gives_our_fault(tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(b"ftrt")
    for work in (
        lambda: build(request_for(tmp_path, NOTHING), lambda _: None),
        lambda: inspecting.inspect(tmp_path / "model.plan"),
    ):
        with pytest.raises(EnvironmentFault, match=f"TensorRT {version()} finds no usable GPU or driver") as raised:
            work()
        assert "nvidia-smi" in raised.value.remedy
    with pytest.raises(TypeError, match="another"), gpu_needed():
        raise TypeError("another")


MISUSES: dict[str, tuple[type[Exception], Callable[[Callable[[str], Any]], Any]]] = {
    "an attribute that is not there": (AttributeError, lambda f: f("IBuilderConfig").max_workspace_size),
    "a write to an attribute that is not there": (
        AttributeError,
        lambda f: setattr(f("IBuilderConfig"), "int8_mode", True),
    ),
    "a write to what can only be read": (
        AttributeError,
        lambda f: setattr(f("IBuilderConfig"), "num_optimization_profiles", 1),
    ),
    "a value of a wrong type": (TypeError, lambda f: setattr(f("IBuilderConfig"), "profiling_verbosity", "DETAILED")),
    "a name for a member": (TypeError, lambda f: f("IBuilderConfig").set_flag("TF32")),
    "a number for a member": (TypeError, lambda f: f("IBuilderConfig").set_flag(6)),
    "nothing for a member": (TypeError, lambda f: f("IBuilderConfig").set_flag(None)),
    "a keyword where there is none": (
        TypeError,
        lambda f: f("ICudaEngine").serialize_with_config(arg0=f("ISerializationConfig")),
    ),
    "too few arguments": (TypeError, lambda f: f("IBuilderConfig").set_memory_pool_limit(1 << 30)),
    "too many arguments": (TypeError, lambda f: f("Builder").create_builder_config(1)),
    "a keyword that is not there": (TypeError, lambda f: f("OnnxParser").parse_from_file(path="a.onnx")),
    "an argument given twice": (TypeError, lambda f: f("OnnxParser").parse_from_file("a.onnx", model="a.onnx")),
    "arguments exchanged": (
        TypeError,
        lambda f: f("Builder").build_serialized_network(f("IBuilderConfig"), f("INetworkDefinition")),
    ),
    "a shape of texts": (TypeError, lambda f: f("IOptimizationProfile").set_shape("x", ("1",), ("1",), ("1",))),
    "contents that are no numbers": (TypeError, lambda f: f("IOptimizationProfile").set_shape_input("x", 1, 1, 1)),
    "a text for memory": (TypeError, lambda f: f("IBuilderConfig").create_timing_cache("path")),
    "items of what has none": (AttributeError, lambda f: f("Builder")[0]),
    "a call that TensorRT never had": (AttributeError, lambda f: f("Builder").build_engine(f("INetworkDefinition"))),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_fake_refuses(misuse: str) -> None:
    fakes = Fakes(tensorrt)
    error, use = MISUSES[misuse]
    with pytest.raises(error):
        use(fakes.make)
    assert fakes.calls == []


def test_a_fake_refuses_a_wrong_logger_for_what_it_constructs(gpu: MadeUp) -> None:
    for wrong in ((), ("logger",), (gpu.make("INetworkDefinition"),)):
        with pytest.raises(TypeError):
            tensorrt.Builder(*wrong)


def test_a_fake_notes_what_was_given_by_name_however_it_was_given() -> None:
    fakes = Fakes(tensorrt)
    config, cache = fakes.make("IBuilderConfig"), fakes.make("ITimingCache")
    config.set_timing_cache(cache, False)
    config.set_timing_cache(cache, ignore_mismatch=False)
    assert fakes.named("set_timing_cache") == [{"cache": cache, "ignore_mismatch": False}] * 2
    assert isinstance(config, tensorrt.IBuilderConfig)
    config.builder_optimization_level = 4
    assert config.builder_optimization_level == 4


def test_after_the_fakes_the_real_classes_are_back() -> None:
    real = tensorrt.Builder
    with Fakes(tensorrt).installed():
        assert tensorrt.Builder is not real
    assert tensorrt.Builder is real
    assert signatures_of(real.create_network.__doc__, "create_network")


def test_polygraphy_changes_tf32_only_where_our_configuration_lets_it(gpu: MadeUp) -> None:
    from polygraphy.backend.trt import CreateConfig

    CreateConfig(profiles=[])(gpu.make("Builder"), gpu.make("INetworkDefinition"))
    assert gpu.named("clear_flag") == [{"flag": tensorrt.BuilderFlag.TF32}]
