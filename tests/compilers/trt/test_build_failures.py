"""Each class of failures by a log that somebody met, what is said of it, and what it says to do."""

from __future__ import annotations

import re

import pytest

from plansmith.compilers.trt import failures
from plansmith.compilers.trt.failures import failure_of, known_failure
from plansmith.errors import EngineError, EnvironmentFault, PlansmithError

from ...support.tensorrt import trtexec_logs as logs

WHAT = "building a plan of model.onnx"

# The log, the kind of error, what its message holds, and what its remedy tells to type or change.
CASES: dict[str, tuple[str, type[PlansmithError], str, str]] = {
    "an operator of no plugin": (logs.NO_PLUGIN_IN_10, EngineError, "/TRTBatchedNMS (TRTBatchedNMS)", "plugins"),
    "the same by the parser": (
        logs.NO_PLUGIN_BY_THE_PARSER,
        EngineError,
        "/dense_motion_network/GridSample (GridSample3D)",
        "tensorrt: plugins",
    ),
    "a plugin that is gone": (
        logs.NO_PLUGIN_CREATOR,
        EngineError,
        "/InstanceNormalization (InstanceNormalization)",
        "plugins",
    ),
    "a node that the parser refuses": (logs.INVALID_NODE, EngineError, "does not take /Tile (Tile)", "onnxruntime"),
    "INT64 and INT32": (logs.MIXED_INTEGERS, EngineError, "Concat_43 mixes Int64 and Int32", "cast one"),
    "FP16 and FP32": (logs.MIXED_FLOATS, EngineError, "mixes types", "cast"),
    "a zero point": (logs.ASYMMETRIC, EngineError, "cannot take the quantization at", "precision: int8"),
    "no memory for any kernel": (
        logs.OUT_OF_DEVICE_MEMORY,
        EnvironmentFault,
        "not enough for any kernel of {ForeignNode[",
        "nvidia-smi",
    ),
    "no kernel": (logs.NO_IMPLEMENTATION, EngineError, "no kernel for /model/model.6/Conv", "optimization_level: 5"),
    "no memory for the plan": (logs.ENGINE_OUT_OF_MEMORY, EnvironmentFault, "the GPU's memory", "workspace"),
    "no memory for the program": (logs.HOST_OUT_OF_MEMORY, EnvironmentFault, "the machine's memory", "--shapes"),
    "no memory for CUDA": (logs.CUDA_OUT_OF_MEMORY, EnvironmentFault, "for CUDA itself", "nvidia-smi"),
    "an old driver": (logs.OLD_DRIVER, EnvironmentFault, "driver is too old", "plansmith targets"),
    "the same by trtexec": (logs.OLD_DRIVER_FOR_TRTEXEC, EnvironmentFault, "driver is too old", "update the driver"),
    "no GPU": (logs.NO_GPU, EnvironmentFault, "finds no GPU", "docker run --gpus all"),
    "no GPU for trtexec": (logs.NO_GPU_FOR_TRTEXEC, EnvironmentFault, "finds no GPU", "CUDA_VISIBLE_DEVICES"),
    "a GPU that is too new": (logs.UNSUPPORTED_GPU, EngineError, "does not know the GPU", "plansmith targets"),
    "a library of TensorRT": (
        logs.LIBRARY_MISSING,
        EnvironmentFault,
        "libnvinfer_builder_resource_win.so.10.2.0",
        "LD_LIBRARY_PATH",
    ),
    "the same at its start": (logs.LIBRARY_MISSING_AT_START, EnvironmentFault, "libnvinfer.so.10", "LD_LIBRARY_PATH"),
    "external weights": (
        logs.EXTERNAL_WEIGHTS_MISSING,
        EngineError,
        "weights that lie beside",
        "in the graph's folder",
    ),
    "the graph": (logs.GRAPH_MISSING, EnvironmentFault, "cannot be opened", "compile the model"),
    "a name in a profile": (logs.UNKNOWN_NAME, EngineError, "the input images", "plansmith inspect"),
    "no profile": (logs.NO_PROFILE, EngineError, "profiles do not fit", "tensorrt: profiles"),
    "a profile that the graph cannot take": (
        logs.PROFILE_AGAINST_THE_GRAPH,
        EngineError,
        "profiles do not fit",
        "tensorrt: profiles",
    ),
    "a full disk": (logs.DISK_FULL, EnvironmentFault, "could not be written", "free some space"),
    "an option that is gone": (logs.UNKNOWN_OPTIONS, EngineError, "Unknown option: --workspace", "--builder api"),
    "another version": (logs.OTHER_VERSION, EngineError, "another TensorRT", "plansmith targets"),
    "another serialization": (logs.OTHER_SERIALIZATION, EngineError, "another TensorRT", "plansmith targets"),
    "another GPU": (logs.OTHER_DEVICE, EngineError, "another kind of GPU", "hardware_compatibility"),
}

# By the sources of trtexec and of its libraries: nobody has put a log of these into an issue that was found.
BY_SOURCE: dict[str, tuple[str, type[PlansmithError], str, str]] = {
    "a library of plugins (DynamicLibrary in sampleUtils.h)": (
        (
            "[E] Uncaught exception detected: Unable to open library: /p/own.so due to /p/own.so: cannot open shared"
            " object file: No such file or directory\n"
        ),
        EngineError,
        "plugins /p/own.so",
        "ldd",
    ),
    "shapes of a static graph (setupNetworkAndConfig in sampleEngines.cpp)": (
        (
            "[E] Static model does not take explicit shapes since the shape of inference tensors will be determined by"
            " the model itself\n"
        ),
        EngineError,
        "takes no profile",
        "leave shapes",
    ),
    "a size without meaning (BuildOptions::parse in sampleOptions.cpp)": (
        "[E] stod conversion failure: failed to parse --memPoolSize. Please double check your input string.\n",
        EngineError,
        "command line",
        "--builder api",
    ),
    "types of an element-wise layer (as TensorRT 11.2.1 is said to put it)": (
        (
            "[E] [TRT] ITensor::getDimensions: Error Code 4: API Usage Error (/Sub: ElementWiseOperation SUB must have"
            " same input types. But they are of types Half and Float.)\n"
        ),
        EngineError,
        "mixes types",
        "lower the model with plansmith",
    ),
    "a miss in the timing cache (words of NvInfer.h on the flag)": (
        "[E] Error[1]: Error Code 1: a tactic being timed is not present in the timing cache\n",
        EngineError,
        "nothing was to be measured",
        "error_on_timing_cache_miss",
    ),
    "another error of CUDA": (
        "[E] CUDA initialization failure with error: 999. Please check your CUDA installation\n",
        EnvironmentFault,
        "error 999",
        "nvidia-smi",
    ),
}


RTX = logs.read_rtx_logs()

# By what was wrong on a machine without a driver, where the failing calls of CUDA that follow are no cause.
ON_A_CPU: dict[str, tuple[str, type[PlansmithError], str, str]] = {
    name: (RTX[name], kind, said, way_out)
    for name, (kind, said, way_out) in {
        "dilated pool": (EngineError, 'MaxPool:\n[8] (dilations[i] == 1) && "This version', "onnxruntime"),
        "operator without importer": (EngineError, "an unnamed Unique", "onnxruntime"),
        "foreign operator": (EngineError, "no operator for an unnamed Fold", "tensorrt: plugins"),
        "zero point": (EngineError, "Non-zero zero point is not supported", "precision: int8"),
        "int32 bias dq": (EngineError, "cannot take the quantization at", "precision: int8"),
        "mixed int": (EngineError, "add (Add) mixes Int64 and Int32", "cast one"),
        "reduction scatter": (EngineError, "[9] Unsupported reduction type", "onnxruntime"),
        "no kernel": (EngineError, "no kernel for node_of_y_0", "optimization_level: 5"),
        "rank of profile": (EngineError, "profiles do not fit", "tensorrt: profiles"),
        "fixed dim in profile": (EngineError, "profiles do not fit", "tensorrt: profiles"),
        "min above max": (EngineError, "profiles do not fit", "tensorrt: profiles"),
        "shapes that do not meet": (EngineError, "profiles do not fit", "tensorrt: profiles"),
        "topk": (EngineError, "node_of_v wants more values than the 3840", "lower k"),
        "branch ranks": (EngineError, "the branches of node_of_y_OutputLayer", "the same rank"),
        "loop without condition": (EngineError, "Node input was not registered", "onnxruntime"),
        "format": (EngineError, "the memory format of x holds no Float", "tensorrt: formats"),
        "workspace too small": (EnvironmentFault, "Requested size was 91310080", "raise it above that size"),
        "no memory": (EnvironmentFault, "the machine's memory is not enough", "--shapes"),
    }.items()
}
ALL = CASES | BY_SOURCE | ON_A_CPU


def test_cpu_logs_are_classified() -> None:
    """Every log of a CPU has its class."""
    assert set(ON_A_CPU) == set(RTX) - {"cancelled"}, "what was cancelled is told by whoever cancelled it"


@pytest.mark.parametrize("case", ALL)
def test_known_failure_says_remedy(case: str) -> None:
    """A known failure says what was wrong and what to do."""
    log, kind, fragment, way_out = ALL[case]
    failure = failure_of(log, activity=WHAT)
    assert type(failure) is kind
    assert failure.message.startswith(f"{WHAT}: ")
    assert fragment in failure.message
    assert way_out in failure.remedy


@pytest.mark.parametrize("case", ALL)
def test_known_failure_quotes_line(case: str) -> None:
    """A known failure quotes the line that tells."""
    log, _, _, _ = ALL[case]
    first, _, quoted = failure_of(log, activity=WHAT).message.partition(":\n")
    assert quoted
    assert "\n" not in first + quoted
    assert quoted.removesuffix(" …") in log
    assert not re.match(r"\[\d\d/\d\d/\d{4}|\[TRT\]|\[E\]|&&&&", quoted)
    assert len(quoted) <= 302


@pytest.mark.parametrize("case", list(CASES))
def test_undated_log_is_same_failure(case: str) -> None:
    """A log without dates and tags, as a logger collects it, is the same failure."""
    log, kind, fragment, _ = CASES[case]
    bare = re.sub(r"^(\[\S+\] )?(\[TRT\] )?\[[IWE]\] (\[TRT\] )?", "", log, flags=re.MULTILINE)
    failure = failure_of(bare, activity=WHAT)
    assert type(failure) is kind
    assert fragment in failure.message


def test_every_class_has_its_log() -> None:
    logs_of_all = [log for log, *_ in ALL.values()]
    silent = [
        cause.message
        for cause in failures._CAUSES
        if not any(cause.signs.search(line) for log in logs_of_all for line in log.splitlines())
    ]
    assert not silent


def test_skipped_kernel_is_no_failure() -> None:
    """A kernel that was skipped for its memory is no failure."""
    assert known_failure(logs.SKIPPED_TACTICS + logs.UNKNOWN, activity=WHAT) is None


def test_good_build_has_no_failure() -> None:
    """A build that went well has no known failure."""
    for log in (logs.BUILT_IN_2025, logs.BUILT_BY_PYTHON, logs.MEASURED_BY_10, logs.ON_A_3090_WITH_10_12):
        assert known_failure(log, activity=WHAT) is None


def test_cause_comes_before_consequence() -> None:
    """The cause comes before what follows from it."""
    both = logs.OLD_DRIVER + logs.NO_IMPLEMENTATION + logs.DISK_FULL
    assert "driver is too old" in failure_of(both, activity=WHAT).message


def test_trtexec_help_is_no_cause() -> None:
    """The help that trtexec prints is no cause."""
    help_text = (
        "&&&& RUNNING TensorRT.trtexec [TensorRT v101600] [b72] # trtexec --onnx=m --minShapes=x\n"
        "=== Build Options ===\n"
        "  --errorOnTimingCacheMiss           Emit error when a tactic being timed is not present in the timing cache\n"
        "                                     (default = false; INVALID_NODE is nothing but a word here)\n"
    )
    assert known_failure(help_text, activity=WHAT) is None
    assert "Unknown option: --x" in failure_of(help_text + "[E] Unknown option: --x \n", activity=WHAT).message


def test_unknown_failure_shows_last_errors() -> None:
    """What is not known shows the last errors and asks for a report."""
    failure = failure_of(logs.UNKNOWN, activity=WHAT)
    assert isinstance(failure, EngineError)
    assert "validateCaskKLibSize" in failure.message
    assert "Builder creation failed" in failure.message
    assert "Engine set up failed" not in failure.message
    assert "please report" in failure.remedy


@pytest.mark.parametrize("log", ["", "\n\n", logs.BUILT_IN_2025])
def test_log_without_errors_is_told(log: str) -> None:
    """A log that says nothing of errors is told so."""
    failure = failure_of(log, activity=WHAT)
    assert failure.message == f"{WHAT}: TensorRT does not say why"
    assert failure.remedy


def test_endless_line_is_cut() -> None:
    """A line without end is cut."""
    failure = failure_of(f"[E] {'x' * 5000}", activity=WHAT)
    assert len(failure.message) < 400
