"""Build failures: classes of TensorRT's own messages, and the remedy for each.

The messages are those of TensorRT 8.5 to 11 and its ONNX parser as they stand in public issues; the tests name one for
each class. One class has none there: a miss in the timing cache that was to hold everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plansmith.errors import EngineError, EnvironmentFault, PlansmithError
from plansmith.system.memory import REMEDY as HOST_MEMORY_REMEDY

# trtexec writes "[05/01/2026-23:03:56] [E] [TRT] words", the Python logger "[05/01/2026-23:03:56] [TRT] [E] words",
# Polygraphy "[E] words"; `[F]` is an internal error. Words that run over a line go on without any of it.
_PREFIX = re.compile(
    r"^\s*(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s*)?(?:\[TRT\]\s*)?\[(?P<severity>[VIWEF])\](?: ?\[TRT\])?[ \t]?"
)
_DATE = re.compile(r"^\s*\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s*")

# Who says which node it is: the parser's own summary, the importer, and the dump of the node that follows.
_NAMED = re.compile(r"In node -?\d+ with name: (?P<name>.*?) and operator: (?P<operator>\S*) \(\w+\):")
_IMPORTED = re.compile(r"While parsing node number \d+ \[(?P<operator>\S+)")
_DUMPED_NAME = re.compile(
    r'^\s*(?:(?:ModelImporter\.cpp:\d+: )?name: "(?P<name>[^"]+)"|Node name: (?P<plain>\S.*?)\s*$)'
)
_UNTYPED = re.compile(r"getPluginCreator could not find plugin: (?P<operator>\S+)")
_CHECKED = re.compile(r"No checker registered for op: (?P<operator>\w+)")
_INVALID = re.compile(r"Invalid Node - (?P<name>\S+)")

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
_NO_KERNEL = re.compile(
    r"Could not find any implementation for node (?P<node>.+?)\.?\)?\.?$|failed\. (?P<layer>\S+) has no runners that"
)
_TOO_LITTLE = re.compile(r"OutOfMemory \(Requested size was \d+ bytes")
_WORKSPACE_REMEDY = (
    "where tensorrt: memory_pools: {workspace: …} is set, raise it above that size or leave it out; where it is not,"
    " end what else holds the GPU's memory (nvidia-smi)"
)


@dataclass(frozen=True)
class LogLine:
    """A log line without its prefix; `severity` is V, I, W, E or F, and a continuation line has that of its message."""

    severity: str
    text: str
    starts: bool

    @property
    def is_error(self) -> bool:
        """Whether its severity is that of an error."""
        return self.severity in {"E", "F"}


@dataclass(frozen=True)
class Node:
    """A graph node as far as a log names it; empty fields where it does not."""

    name: str = ""
    operator: str = ""

    def __str__(self) -> str:
        if self.name and self.operator:
            return f"{self.name} ({self.operator})"
        return self.name or (f"an unnamed {self.operator}" if self.operator else "a node")


def read_lines(text: str) -> Iterator[LogLine]:
    """Yield the non-empty lines of a log, without dates and tags."""
    severity = ""
    for line in text.splitlines():
        prefix = _PREFIX.match(line)
        if prefix is not None:
            severity = prefix["severity"]
        elif line.startswith("&&&&"):
            severity = ""
        content = line[prefix.end() :] if prefix is not None else _DATE.sub("", line)
        if content.strip():
            yield LogLine(severity, content.rstrip(), starts=prefix is not None or not severity)


def errors_of(lines: Sequence[LogLine]) -> list[str]:
    """Return the errors of a log, one line each, without the node dumps that follow them.

    A log whose lines have no severity is one of errors only.
    """
    if not any(line.severity for line in lines):
        return [line.text.strip() for line in lines]
    return [line.text.strip() for line in lines if line.is_error and line.starts]


def warnings_of(lines: Sequence[LogLine]) -> list[str]:
    """Return the distinct warnings of a log, in order."""
    return list(dict.fromkeys(line.text.strip() for line in lines if line.severity == "W" and line.starts))


def failed_node(lines: Sequence[LogLine]) -> Node:
    """Return the first node that the parser failed on."""
    for line in lines:
        named = _NAMED.search(line.text)
        if named is not None and (named["name"] or named["operator"]):
            return Node(named["name"], named["operator"])
    for place, line in enumerate(lines):
        imported = _IMPORTED.search(line.text)
        if imported is not None:
            dumped = (_DUMPED_NAME.search(later.text) for later in lines[place + 1 : _end_of_dump(lines, place)])
            return Node(next((match["name"] or match["plain"] for match in dumped if match), ""), imported["operator"])
    for pattern in (_INVALID, _UNTYPED, _CHECKED):
        for line in lines:
            match = pattern.search(line.text)
            if match is not None:
                fields = match.groupdict()
                return Node(fields.get("name", ""), fields.get("operator", ""))
    return Node()


def _end_of_dump(lines: Sequence[LogLine], begin: int) -> int:
    """The end of a node dump: attributes have names too, so only the text before them counts."""
    for place in range(begin + 1, len(lines)):
        text = lines[place].text
        if "--- End node ---" in text or text.lstrip().startswith("attribute"):
            return place
    return len(lines)


@dataclass(frozen=True)
class FailureClass:
    """One class of failures.

    `signs`: found in one line of the log, an error's or one without a severity unless `anywhere`; `message` may name
    the groups of `signs`, and `{node}`.
    """

    signs: re.Pattern[str]
    message: str
    remedy: str
    kind: type[PlansmithError] = EngineError
    anywhere: bool = False


def _cause(signs: str, message: str, remedy: str, *, machine: bool = False, anywhere: bool = False) -> FailureClass:
    return FailureClass(re.compile(signs), message, remedy, EnvironmentFault if machine else EngineError, anywhere)


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


def failure_of(log_text: str, *, activity: str) -> PlansmithError:
    """Return the error for a failed build's log.

    Args:
        log_text: all that was written, by trtexec or by the Python API's logger.
        activity: what failed, for the message: "building a plan of model.onnx".
    """
    fault = known_failure(log_text, activity=activity)
    if fault is not None:
        return fault
    lines = _without_late_cuda(list(read_lines(log_text)))
    last = [text for text in errors_of(lines) if not _CONSEQUENCES.search(text)][-_LAST_ERRORS:]
    message = "\n".join(["TensorRT says", *map(_quoted, last)]) if last else "TensorRT does not say why"
    return EngineError(
        f"{activity}: {message}", remedy="read the log; if the model is sound, please report this with it"
    )


def known_failure(log_text: str, *, activity: str) -> PlansmithError | None:
    """As `failure_of`, for a log with a message of a known class; None for any other."""
    lines = _without_late_cuda(list(read_lines(log_text)))
    for cause in _CAUSES:
        for line in lines:
            match = cause.signs.search(line.text) if _counts(line, cause) else None
            if match is not None:
                fields = {name: value or "" for name, value in match.groupdict().items()}
                message = cause.message.format(node=failed_node(lines), **fields)
                return cause.kind(f"{activity}: {message}:\n{_quoted(_reason(line, lines))}", remedy=cause.remedy)
    return _no_kernel(lines, activity) or _no_memory(lines, activity)


def is_of_library(log_text: str) -> bool:
    """Whether a library lacks an operator or a kernel for a node, which another library may have."""
    lines = [line for line in read_lines(log_text) if _is_error(line)]
    return any(re.search(_ABSENT, line.text) or _NO_KERNEL.search(line.text) for line in lines)


def _without_late_cuda(lines: list[LogLine]) -> list[LogLine]:
    """Remove CUDA call errors that follow from another error, as they do where there is no driver."""
    others = [line for line in lines if line.is_error and line.starts and not _CUDA_CALL.search(line.text)]
    if all(_CONSEQUENCES.search(line.text) for line in others):
        return lines
    return [line for line in lines if not _CUDA_CALL.search(line.text)]


def _reason(line: LogLine, lines: Sequence[LogLine]) -> str:
    """The reason to quote from a line: for the parser, the last one, after the location and the node dump."""
    if not _PARSER.match(line.text):
        return line.text
    reasons = [entry.text for entry in lines if _PARSER_REASON.match(entry.text.strip())]
    return reasons[-1] if reasons else line.text


def _no_kernel(lines: Sequence[LogLine], activity: str) -> PlansmithError | None:
    """The error for a node without a kernel, for lack of memory or because none fits."""
    for line in lines:
        unmade = _NO_KERNEL.search(line.text) if _is_error(line) else None
        if unmade is None:
            continue
        node = unmade["node"] or unmade["layer"]
        starved = next((entry.text for entry in lines if _STARVED.search(entry.text)), None)
        if starved is not None:
            return EnvironmentFault(
                f"{activity}: the GPU's memory is not enough for any kernel of {node}:\n{_quoted(starved)}",
                remedy=_DEVICE_MEMORY_REMEDY,
            )
        return EngineError(
            f"{activity}: TensorRT has no kernel for {node}:\n{_quoted(line.text)}",
            remedy="give the builder more: tensorrt: memory_pools without a limit, optimization_level: 5; or keep the"
            " node in a higher precision, or use another target",
        )
    return None


def _no_memory(lines: Sequence[LogLine], activity: str) -> PlansmithError | None:
    """The error for a lack of host or GPU memory; a kernel skipped for it is no failure."""
    errors = [line.text for line in lines if _is_error(line)]
    host = next((text for text in errors if _HOST.search(text)), None)
    if host is not None:
        return EnvironmentFault(
            f"{activity}: the machine's memory is not enough:\n{_quoted(host)}", remedy=HOST_MEMORY_REMEDY
        )
    spent = next((text for text in errors if _STARVED.search(text) and not _SKIPPED.search(text)), None)
    if spent is not None:
        remedy = _WORKSPACE_REMEDY if _TOO_LITTLE.search(spent) else _DEVICE_MEMORY_REMEDY
        return EnvironmentFault(f"{activity}: the GPU's memory is not enough:\n{_quoted(spent)}", remedy=remedy)
    return None


def _counts(line: LogLine, cause: FailureClass) -> bool:
    return _is_error(line) or (cause.anywhere and not line.text.startswith("&&&&"))


def _is_error(line: LogLine) -> bool:
    """Whether a log line is an error or has no severity.

    Not the banner and help of trtexec, which mention everything.
    """
    return line.is_error or (not line.severity and not _SELF.match(line.text))


def _quoted(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]} …"
