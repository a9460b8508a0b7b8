"""AutoCast runs in an interpreter of the user's: what it is asked, what it answers, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plansmith.compilers.precision.fp16 import method as half
from plansmith.compilers.precision.fp16 import modelopt_autocast
from plansmith.compilers.precision.fp16.modelopt_autocast import AutocastMethod
from plansmith.config.precision import LoweringOptions
from plansmith.errors import EnvironmentFault, ExportError, PlansmithError
from plansmith.records.model import Precision

from ....support.precision import modelopt_standin
from ....support.precision.half_graphs import graph, run, samples

X = np.random.default_rng(5).normal(size=(4, 8)).astype(np.float32)
FEEDS = ({"x": X}, {"x": X[:1]})
TEXT = "(float[N, 8] x) => (float[N, 8] y) { a = MatMul (x, w) ab = Exp (a) y = Tanh (ab) }"


def model() -> onnx.ModelProto:
    return graph(TEXT, w=np.random.default_rng(6).uniform(-0.3, 0.3, (8, 8)).astype(np.float32))


def method(interpreter: str, folder: Path, precision: Precision = Precision.FP16, **options: Any) -> AutocastMethod:
    steering = LoweringOptions(autocast=interpreter, **options)
    (made,) = half.methods(model(), samples(folder, *FEEDS), steering, precision=precision)
    assert isinstance(made, AutocastMethod)
    return made


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_autocast_chooses_and_says_why(precision: Precision, tmp_path: Path) -> None:
    made = method(modelopt_standin.write(tmp_path), tmp_path, precision)
    assert made.name == f"{precision.upper()}, AutoCast of nvidia-modelopt {modelopt_standin.VERSION}"
    assert made.settings == {"nvidia-modelopt": modelopt_standin.VERSION, "inputs and outputs": "FP32"}
    assert (made.lowerable, made.kept) == (("a", "y"), {"ab": "AutoCast: reference IO out of range"})
    assert precision.upper() in made.not_validated[0]
    lowered = made.lower(())
    exact, rounded = run(model(), tmp_path, FEEDS[0])[0], run(made.runnable(lowered), tmp_path, FEEDS[0])[0]
    np.testing.assert_allclose(rounded, exact, atol=0.05)
    assert not np.array_equal(rounded, exact)


def test_nodes_that_stay_are_excluded_by_their_whole_names(tmp_path: Path) -> None:
    made = method(modelopt_standin.write(tmp_path), tmp_path, keep=("y|nothing",))
    assert made.kept["y"] == "the spec keeps 'y|nothing'"
    assert made.lowerable == ("a",)
    assert not [n for n in made.lower({"a"}).graph.node if n.op_type == "Cast"]


def test_inputs_and_outputs_stay_fp32_unless_asked(tmp_path: Path) -> None:
    says = "raise ValueError(f'keep_io_types is {keep_io_types}')"
    interpreter = modelopt_standin.write(tmp_path, behaviour=says)
    for lower_io, kept in ((False, "True"), (True, "False")):
        (tmp_path / kept).mkdir()
        with pytest.raises(ExportError, match=f"keep_io_types is {kept}"):
            method(interpreter, tmp_path / kept, lower_io=lower_io)


FAULTS: dict[str, tuple[dict[str, Any], type[PlansmithError], str, str]] = {
    "an exception": (
        {"behaviour": "raise ValueError('no such thing')"},
        ExportError,
        "AutoCast refused the graph: ValueError: no such thing",
        "leave `autocast` out",
    ),
    "an end without an answer": (
        {"behaviour": "print('too much', flush=True); os._exit(3)"},
        ExportError,
        "it ended with code 3:\ntoo much",
        "leave `autocast` out",
    ),
    "another version": (
        {"parameters": [p for p in modelopt_standin.SIGNATURE if p != "keep_io_types"]},
        EnvironmentFault,
        "AutoCast of nvidia-modelopt 0.47.0 does not know keep_io_types",
        "pip install 'nvidia-modelopt[onnx]>=0.47'",
    ),
}


@pytest.mark.parametrize(("standin", "kind", "says", "remedy"), FAULTS.values(), ids=FAULTS)
def test_what_goes_wrong_in_the_other_interpreter_is_told(
    standin: dict[str, Any], kind: type[PlansmithError], says: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        method(modelopt_standin.write(tmp_path, **standin), tmp_path)
    assert says in caught.value.message
    assert remedy in caught.value.remedy


def test_an_interpreter_that_is_not_there_or_has_no_modelopt_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be started: No such file"):
        method(str(tmp_path / "python"), tmp_path)
    (tmp_path / "again").mkdir()
    with pytest.raises(EnvironmentFault, match="No module named 'modelopt'") as caught:
        method(sys.executable, tmp_path / "again")
    assert caught.value.remedy.startswith(f"{sys.executable} -m pip install")


@pytest.mark.slow
def test_autocast_that_does_not_end_is_ended(tmp_path: Path) -> None:
    interpreter = modelopt_standin.write(tmp_path, behaviour="time.sleep(600)")
    options = LoweringOptions(autocast=interpreter)
    with pytest.raises(ExportError, match="did not end within 3 seconds"):
        AutocastMethod(model(), samples(tmp_path, *FEEDS), options, Precision.FP16, deadline_seconds=3)


def test_without_calibration_inputs_autocast_is_not_asked(tmp_path: Path) -> None:
    options = LoweringOptions(autocast=str(tmp_path / "python"))
    with pytest.raises(ExportError, match="AutoCast would draw random ones"):
        modelopt_autocast.methods(model(), samples(tmp_path), options, precision=Precision.FP16)


@pytest.mark.services
@pytest.mark.slow
def test_the_real_autocast_does_what_the_stand_in_does(tmp_path: Path) -> None:
    interpreter = _environment(tmp_path / "environment")
    script = (
        "import inspect, json, modelopt.onnx.autocast as a;"
        "print(json.dumps(list(inspect.signature(a.convert_to_mixed_precision).parameters)))"
    )
    told = subprocess.run([interpreter, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(told.splitlines()[-1]) == modelopt_standin.SIGNATURE
    made = method(interpreter, tmp_path)
    assert (made.lowerable, made.kept) == (("a", "ab", "y"), {})
    kept = made.lower({"ab"})
    exact = run(model(), tmp_path, FEEDS[0])[0]
    for lowered in (made.lower(()), kept):
        onnx.checker.check_model(lowered, full_check=True)
        np.testing.assert_allclose(run(made.runnable(lowered), tmp_path, FEEDS[0])[0], exact, atol=0.05)
    types = {v.name: v.type.tensor_type.elem_type for v in kept.graph.value_info}
    node = next(n for n in kept.graph.node if n.name == "ab")
    assert types[node.output[0]] == onnx.TensorProto.FLOAT


def _environment(folder: Path) -> str:
    """An environment with ModelOpt and the libraries that it pins, over this one's PyTorch; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    interpreter = folder / "bin" / "python"
    pinned = [f"nvidia-modelopt=={modelopt_standin.VERSION}", "onnx==1.21.0", "onnxruntime==1.24.4", "protobuf"]
    needed = ["onnx-graphsurgeon", "onnxconverter-common", "onnxslim", "lief", "nvidia-ml-py", "omegaconf", "pulp<4"]
    needed += ["cppimport", "antlr4-python3-runtime"]
    quiet = ["--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(interpreter), "install", *quiet, *pinned, *needed],
        check=True,
    )
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "zz-below.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return str(interpreter)
