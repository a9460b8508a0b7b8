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
from plansmith.compilers.trt.api import run as inspecting
from plansmith.compilers.trt.api.building import build
from plansmith.compilers.trt.api.runtime import gpu_needed, version
from plansmith.compilers.trt.rules import DLA_ONLY, TAKES
from plansmith.errors import EnvironmentFault
from plansmith.records.engine import BuildSpec, MemoryPool, TensorFormat
from plansmith.testing import Fakes, signatures_of

from ....support.tensorrt.made_up import NOTHING, MadeUp, request_for


def chains(source: str) -> set[tuple[str, ...]]:
    """What a source takes from `tensorrt`: ("BuilderFlag", "TF32") for `tensorrt.BuilderFlag.TF32`."""
    results = set()
    for node in ast.walk(ast.parse(source)):
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id == "tensorrt":
            results.add(tuple(parts))
    return results


def test_used_names_exist_in_tensorrt() -> None:
    """Every name that the sources take from TensorRT is there."""
    named = set().union(*(chains(path.read_text()) for path in Path(api.__path__[0]).glob("*.py")))
    assert ("BuilderFlag", "REFIT_IDENTICAL") in named
    for chain in named:
        attribute: Any = tensorrt
        for part in chain:
            attribute = getattr(attribute, part)


def test_formats_fit_tensors_of_bindings() -> None:
    """Formats are for the tensors that the bindings say."""
    names = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8", "INT64": "int64"}
    names["FP8"] = "float8_e4m3fn"
    text = tensorrt.TensorFormat.__doc__
    for form in get_args(TensorFormat):
        member = "LINEAR" if form == "chw" else form.upper()
        match = re.search(rf"\n  {member} :(.*?)(?=\n  [A-Z0-9_]+ :|\Z)", text, re.DOTALL)
        assert match is not None, member
        if form in DLA_ONLY:
            assert "DLA" in match[1], member
            continue
        rank = re.search(r"dimensions >= (\d)", match[1])
        bound = re.search(r"bound to ([A-Z0-9,/ and]+)", match[1])
        assert TAKES[form].rank == (int(rank[1]) if rank else 0), member
        assert set(TAKES[form].dtypes) == {
            names[dtype] for dtype in re.findall(r"[A-Z]+\d+", bound[1] if bound else "")
        }
        assert "DLA" not in match[1], member


def test_spec_words_have_members() -> None:
    """Every word of a spec has its member."""
    fields = BuildSpec.model_fields
    vocabulary = {
        "TilingOptimizationLevel": get_args(fields["tiling"].annotation),
        "ProfilingVerbosity": get_args(fields["verbosity"].annotation),
        "HardwareCompatibilityLevel": get_args(fields["hardware_compatibility"].annotation),
        "MemoryPoolType": get_args(MemoryPool),
        "TensorFormat": set(get_args(TensorFormat)) - {"chw"} | {"linear"},
    }
    for kind, terms in vocabulary.items():
        assert terms
        assert {word.upper() for word in terms} <= set(getattr(tensorrt, kind).__members__)
    assert set(inspecting.DTYPES) == set(tensorrt.DataType.__members__)


def test_bindings_do_without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings alone do where the package is not installed."""
    bindings = sys.modules["tensorrt"]
    monkeypatch.delitem(sys.modules, "tensorrt")
    assert version() == bindings.__version__
    assert sys.modules["tensorrt"] is bindings


def test_missing_gpu_gives_own_fault(tmp_path: Path) -> None:
    """Without a GPU, the real module gives our fault."""
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


def test_fake_refuses_wrong_logger(gpu: MadeUp) -> None:
    """A fake refuses a wrong logger for what it constructs."""
    for wrong in ((), ("logger",), (gpu.make("INetworkDefinition"),)):
        with pytest.raises(TypeError):
            tensorrt.Builder(*wrong)


def test_fake_notes_arguments_by_name() -> None:
    """A fake notes by name what was given, however it was given."""
    fakes = Fakes(tensorrt)
    config, cache = fakes.make("IBuilderConfig"), fakes.make("ITimingCache")
    config.set_timing_cache(cache, False)
    config.set_timing_cache(cache, ignore_mismatch=False)
    assert fakes.named("set_timing_cache") == [{"cache": cache, "ignore_mismatch": False}] * 2
    assert isinstance(config, tensorrt.IBuilderConfig)
    config.builder_optimization_level = 4
    assert config.builder_optimization_level == 4


def test_real_classes_restored_after_fakes() -> None:
    """After the fakes the real classes are back."""
    real = tensorrt.Builder
    with Fakes(tensorrt).installed():
        assert tensorrt.Builder is not real
    assert tensorrt.Builder is real
    assert signatures_of(real.create_network.__doc__, "create_network")


def test_polygraphy_keeps_configured_tf32(gpu: MadeUp) -> None:
    """Polygraphy changes TF32 only where our configuration lets it."""
    from polygraphy.backend.trt import CreateConfig

    CreateConfig(profiles=[])(gpu.make("Builder"), gpu.make("INetworkDefinition"))
    assert gpu.named("clear_flag") == [{"flag": tensorrt.BuilderFlag.TF32}]
