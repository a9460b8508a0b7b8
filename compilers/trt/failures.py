"""Why a build failed: the classes of TensorRT's own messages, and what to do about each.

The messages are those of TensorRT 8.5 to 11 and its ONNX parser as they stand in public issues; the tests name one for
each class. One class has none there: a miss in the timing cache that was to hold everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plansmith.compilers.trt.logs import LogLine, errors_of, failed_node, read_lines
from plansmith.errors import EngineError, EnvironmentFault, PlansmithError
from plansmith.system.memory import REMEDY as HOST_MEMORY_REMEDY

_QUOTED_CHARACTERS = 300
_LAST_ERRORS = 3

_LOOK_UP = "what each release needs: plansmith targets"
_DEVICE_MEMORY_REMEDY = (
    "end what else holds the GPU's memory (nvidia-smi), lower tensorrt: memory_pools: {workspace: 2G}, or make the"
    " largest shape smaller (--shapes)"
)

# What is told of memory while kernels are timed. A kernel that gets none is skipped, so that these alone fail no build.
_STARVED = re.compile(
    r"OutOfMemory|out of memory|insufficient memory|Device memory is insufficient|could not be allocated"
    r"|allocator error allocating"
)
# `new` of C++, and buffers of the host that a plan is put together in.
_HOST = re.compile("bad_alloc|bad allocation|HostBuffer::allocate")
_SKIPPED = re.compile(r"resizePhysical|[Ss]kipping tactic|Tactic Device request|Requested amount of GPU memory")
# What fails on a machine without a driver, after whatever else went wrong: a cause only where nothing else is one.
_CUDA_CALL = re.compile(r"checkMacros\.cpp::catchCudaError")
_PARSER = re.compile(r"ModelImporter\.cpp:\d+: ")
_PARSER_REASON = re.compile(r"\[\d+\] \S")
_CONSEQUENCES = re.compile(
    r"Failed to parse onnx file|Engine set up failed|Building engine failed|Parsing model failed"
    r"|Failed to create engine from model or file|Engine could not be created from network"
)
# What one library lacks, and another may have: an operator, or the plugin that it is.
_ABSENT = (
    "getPluginCreator could not find plugin|Plugin not found, are the plugin name|No (?:importer|op) registered"
    "|Cannot find plugin|Unsupported reduction type"
)
_SELF = re.compile(r"&&&&|===|\s*-{1,2}\w|\s{8,}")


@dataclass(frozen=True)
class FailureClass:
    """One class of failures.

    `signs`: found in one line of the log, an error's or one without a severity unless `anywhere`; `said` may name the
    groups of `signs`, and `{node}`.
    """

    signs: re.Pattern[str]
    said: str
    remedy: str
    kind: type[PlansmithError] = EngineError
    anywhere: bool = False


def _cause(signs: str, said: str, remedy: str, *, machine: bool = False, anywhere: bool = False) -> FailureClass:
    return FailureClass(re.compile(signs), said, remedy, EnvironmentFault if machine else EngineError, anywhere)


# From what stops a build at once to what only shows at its end: a log tells of the consequences of its cause too.
_CAUSES = (
    _cause(
        r"CUDA initialization failure with error:? (?:35|803|804)\b|driver version is insufficient"
        r"|cudaErrorInsufficientDriver",
        "the NVIDIA driver is too old for the CUDA that TensorRT brings",
        f"update the driver (nvidia-smi shows its version), or choose an older target; {_LOOK_UP}",
        machine=True,
        anywhere=True,
    ),
    _cause(
        r"(?i)CUDA initialization failure with error:? (?:100|38|46)\b|no CUDA-capable device|CUDA_ERROR_NO_DEVICE",
        "TensorRT finds no GPU",
        "run it on a machine with an NVIDIA GPU; in a container: docker run --gpus all; see what CUDA_VISIBLE_DEVICES"
        " hides",
        machine=True,
        anywhere=True,
    ),
    _cause(
        r"(?i)CUDA initialization failure with error:? 2\b",
        "the GPU has no memory left for CUDA itself",
        _DEVICE_MEMORY_REMEDY,
        machine=True,
        anywhere=True,
    ),
    _cause(
        r"(?i)CUDA initialization failure with error:? (?P<number>\d+)",
        "CUDA does not start (error {number})",
        "see whether nvidia-smi works; restart the machine or its driver if it does not",
        machine=True,
        anywhere=True,
    ),
    _cause(
        r"(?:error while loading shared libraries: |Unable to (?:load|open) library: |Could not load library )"
        r"(?P<library>lib(?:nv|cu)[^\s:)]+)",
        "TensorRT does not find its library {library}",
        "put the folder of TensorRT's libraries into LD_LIBRARY_PATH, or build in NVIDIA's container",
        machine=True,
    ),
    _cause(
        r"(?:Unable to (?:load|open) library: |Could not load (?:plugin )?library:? )(?P<library>[^\s:)]+)",
        "the library of plugins {library} cannot be loaded",
        "see what it lacks with ldd, and whether tensorrt: plugins names one that was built for this TensorRT",
    ),
    _cause(
        r"Unknown option: (?P<option>\S+)|Model missing or format not recognized|conversion failure: failed to parse"
        r"|Invalid (?:TensorFormat|DataType|IOFormat)"
        r"|Unknown (?:hardwareCompatibilityLevel|profilingVerbosity|memory pool)",
        "trtexec does not take its command line",
        "use the trtexec of TensorRT 10.12 or later, or --builder api; if it is one, please report this with the log",
    ),
    _cause(
        r"Failed to open file: (?P<file>\S*)|Failed to import initializer",
        "the weights that lie beside the graph cannot be read",
        "see that they lie in the graph's folder, and that the machine has the memory for them; if they are gone,"
        " compile the model again",
    ),
    _cause(
        r"Input file cannot be found|Could not open file (?P<file>\S+\.onnx)|Failed to parse ONNX model from file",
        "the graph cannot be opened",
        "compile the model again, so that the graph is made anew",
        machine=True,
    ),
    _cause(
        r"(?:incompatible types|are of types) (?P<one>Int64|Int32) and (?P<other>Int64|Int32)",
        "{node} mixes {one} and {other}, which TensorRT 10 and later keep apart",
        "cast one of its inputs in the model, so that both have one type",
    ),
    _cause(
        r"(?:incompatible (?:input )?types|are of types) (?P<one>\w+) and (?P<other>\w+)"
        r"|element type \((?P<low>\w+)\) differs from input \d's element type \((?P<high>\w+)\)",
        "{node} mixes types, which a strongly typed network does not take",
        "lower the model with plansmith, which casts where types meet, or cast in the model",
    ),
    _cause(
        r"Quantized constant \(.*\) is only allowed before DQ|has type \w+ but must have type FP8"
        r"|shiftIsAllZeros|[Nn]on-zero zero point|[Ss]cale coefficients must all be positive"
        r"|QuantDequantLinearHelper|Unsupported.*(?:Quantize|Dequantize)Linear",
        "TensorRT cannot take the quantization at {node}",
        "let plansmith quantize it, with zero points of 0 and positive scales: precision: int8",
    ),
    _cause(
        rf"{_ABSENT}|UNSUPPORTED_(?:NODE|GRAPH)",
        "TensorRT's parser has no operator for {node}",
        "name its library under tensorrt: plugins, replace the operator in the model, or use engine: onnxruntime",
    ),
    _cause(
        r'Cannot find input tensor with name "(?P<input>[^"]*)"',
        "a profile names the input {input}, which the graph does not have",
        "name the graph's own inputs under tensorrt: profiles; plansmith inspect lists them",
    ),
    _cause(
        r"Static model does not take explicit shapes",
        "the graph's shapes are all fixed, so that it takes no profile",
        "leave shapes and tensorrt: profiles out, or export the model with axes that vary",
    ),
    _cause(
        r"Dynamic dimensions required for input: (?P<input>[^\s,]+)"
        r"|no optimization profile has been defined|profile is missing values for shape input"
        r"|Required optimization profile is invalid|Error in set (?:dimensions to profile|shape values)"
        r"|optimization profiles (?:must )?satisfy|violate shape constraints|does not match any|Profile is not valid"
        r"|Dynamic-shaped input tensor \S+ has \d+ dimensions but profile|Dimension mismatch for tensor \S+ and profile"
        r"|provided for shape tensor is inconsistent|IOptimizationProfile::set\w+: ",
        "the optimization profiles do not fit the graph",
        "give every input whose shape varies a range that the model can take, under shapes or tensorrt: profiles",
    ),
    _cause(
        r"(?P<tensor>[^\s(]+): has dataType (?P<dtype>\w+) unsupported by tensor's allowed TensorFormats",
        "the memory format of {tensor} holds no {dtype}",
        "choose another for it under tensorrt: formats, or leave it out there",
    ),
    _cause(
        r"ITopKLayer (?P<layer>[^\s:]+): .*K exceeds the maximum value allowed \((?P<most>\d+)\)",
        "{layer} wants more values than the {most} that TensorRT's TopK gives",
        "lower k in the model, or use engine: onnxruntime",
    ),
    _cause(
        r"IConditionalOutputLayer (?P<layer>[^\s:]+): Must have inputs with equal ranks",
        "the branches of {layer} give tensors of different ranks",
        "give both the same rank in the model, or use engine: onnxruntime",
    ),
    _cause(
        r"While parsing node number|INVALID_(?:NODE|GRAPH|VALUE)|Invalid Node|In node -?\d+ with name"
        r"|ModelImporter\.cpp:\d+: ERROR",
        "TensorRT's parser does not take {node}",
        "change it in the model, or use engine: onnxruntime",
    ),
    _cause(
        r"(?i)timing cache.*\bmiss|\bmiss\w*\b.*timing cache|not (?:found|present) in (?:the )?timing cache",
        "the timing cache does not know all that this build needs, and nothing was to be measured",
        "build once without tensorrt: error_on_timing_cache_miss, and then again with it",
    ),
    _cause(
        r"Target GPU SM (?P<sm>\d+) is not supported|Unsupported SM: (?P<hex>\w+)",
        "this TensorRT does not know the GPU",
        f"choose a target whose TensorRT does; {_LOOK_UP}",
    ),
    _cause(
        r"expecting library version (?P<wanted>[\d.]+),? got (?P<found>[\d.]+)|Version tag does not match"
        r"|incompatible serialization version",
        "the plan belongs to another TensorRT than the one that loads it",
        f"build it with the full version of the target's TensorRT, in its container; {_LOOK_UP}",
    ),
    _cause(
        r"generated on an incompatible device(?:, expecting compute (?P<wanted>[\d.]+) got compute (?P<found>[\d.]+))?",
        "the plan belongs to another kind of GPU than the one that loads it",
        "build it on the target's kind of GPU, or set tensorrt: hardware_compatibility",
    ),
    _cause(
        r"Saving engine to file failed|Cannot open engine file|No space left on device|Error when reading engine file"
        r"|Failed to open engine file",
        "the plan could not be written",
        "free some space in the artifact folder and where temporary files go, or set TMPDIR",
        machine=True,
    ),
)

_NO_KERNEL = re.compile(
    r"Could not find any implementation for node (?P<node>.+?)\.?\)?\.?$|failed\. (?P<layer>\S+) has no runners that"
)
_TOO_LITTLE = re.compile(r"OutOfMemory \(Requested size was \d+ bytes")
_WORKSPACE_REMEDY = (
    "where tensorrt: memory_pools: {workspace: …} is set, raise it above that size or leave it out; where it is not,"
    " end what else holds the GPU's memory (nvidia-smi)"
)


def failure_of(log_text: str, *, what: str) -> PlansmithError:
    """The error that a failed build's log amounts to.

    Args:
        log_text: all that was written, by trtexec or by the Python API's logger.
        what: what failed, for the message: "building a plan of model.onnx".
    """
    known = known_failure(log_text, what=what)
    if known is not None:
        return known
    lines = _without_late_cuda(list(read_lines(log_text)))
    last = [text for text in errors_of(lines) if not _CONSEQUENCES.search(text)][-_LAST_ERRORS:]
    said = "\n".join(["TensorRT says", *map(_quoted, last)]) if last else "TensorRT does not say why"
    return EngineError(f"{what}: {said}", remedy="read the log; if the model is sound, please report this with it")


def known_failure(log_text: str, *, what: str) -> PlansmithError | None:
    """As `failure_of`, for a log that holds a message of a known class; None for any other."""
    lines = _without_late_cuda(list(read_lines(log_text)))
    for cause in _CAUSES:
        for line in lines:
            found = cause.signs.search(line.text) if _counts(line, cause) else None
            if found is not None:
                fields = {name: value or "" for name, value in found.groupdict().items()}
                said = cause.said.format(node=failed_node(lines), **fields)
                return cause.kind(f"{what}: {said}:\n{_quoted(_reason(line, lines))}", remedy=cause.remedy)
    return _no_kernel(lines, what) or _no_memory(lines, what)


def is_of_library(log_text: str) -> bool:
    """Whether a library has no operator or no kernel for a node, which another library may have."""
    lines = [line for line in read_lines(log_text) if _is_error(line)]
    return any(re.search(_ABSENT, line.text) or _NO_KERNEL.search(line.text) for line in lines)


def _without_late_cuda(lines: list[LogLine]) -> list[LogLine]:
    """Without calls of CUDA that failed beside another error, as they do after it where there is no driver."""
    others = [line for line in lines if line.is_error and line.starts and not _CUDA_CALL.search(line.text)]
    if all(_CONSEQUENCES.search(line.text) for line in others):
        return lines
    return [line for line in lines if not _CUDA_CALL.search(line.text)]


def _reason(line: LogLine, lines: Sequence[LogLine]) -> str:
    """What to quote of a line: of the parser, which first says where and then dumps the node, the reason at the end."""
    if not _PARSER.match(line.text):
        return line.text
    reasons = [other.text for other in lines if _PARSER_REASON.match(other.text.strip())]
    return reasons[-1] if reasons else line.text


def _no_kernel(lines: Sequence[LogLine], what: str) -> PlansmithError | None:
    """No kernel for a node, for lack of memory or because none fits."""
    for line in lines:
        unmade = _NO_KERNEL.search(line.text) if _is_error(line) else None
        if unmade is None:
            continue
        node = unmade["node"] or unmade["layer"]
        starved = next((other.text for other in lines if _STARVED.search(other.text)), None)
        if starved is not None:
            return EnvironmentFault(
                f"{what}: the GPU's memory is not enough for any kernel of {node}:\n{_quoted(starved)}",
                remedy=_DEVICE_MEMORY_REMEDY,
            )
        return EngineError(
            f"{what}: TensorRT has no kernel for {node}:\n{_quoted(line.text)}",
            remedy="give the builder more: tensorrt: memory_pools without a limit, optimization_level: 5; or keep the"
            " node in a higher precision, or use another target",
        )
    return None


def _no_memory(lines: Sequence[LogLine], what: str) -> PlansmithError | None:
    """No memory, of the machine or of the GPU; a kernel that was skipped for it is no failure."""
    errors = [line.text for line in lines if _is_error(line)]
    host = next((text for text in errors if _HOST.search(text)), None)
    if host is not None:
        return EnvironmentFault(
            f"{what}: the machine's memory is not enough:\n{_quoted(host)}", remedy=HOST_MEMORY_REMEDY
        )
    spent = next((text for text in errors if _STARVED.search(text) and not _SKIPPED.search(text)), None)
    if spent is not None:
        remedy = _WORKSPACE_REMEDY if _TOO_LITTLE.search(spent) else _DEVICE_MEMORY_REMEDY
        return EnvironmentFault(f"{what}: the GPU's memory is not enough:\n{_quoted(spent)}", remedy=remedy)
    return None


def _counts(line: LogLine, cause: FailureClass) -> bool:
    return _is_error(line) or (cause.anywhere and not line.text.startswith("&&&&"))


def _is_error(line: LogLine) -> bool:
    """What a log calls an error or gives no severity; not trtexec's banner and help, which name everything."""
    return line.is_error or (not line.severity and not _SELF.match(line.text))


def _quoted(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]} …"
