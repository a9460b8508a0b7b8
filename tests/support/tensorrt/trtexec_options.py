"""What the option parsers of trtexec 10 and 11 take, as data, and a reader that refuses what they refuse.

Read from samples/common/sampleOptions.cpp of https://github.com/NVIDIA/TensorRT: for 10 at 10.13 (the file that says
"Weakly-typed networks have been deprecated"), for 11 at 6e50a4cc (11.0) and d5883286 (11.1). Nothing here is taken
from the code that is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# How a value is read: a flag has none, and a value that it is given is not looked at.
FLAG, TEXT, WHOLE, NUMBER, PERCENTILES = "flag", "text", "whole", "number", "percentiles"
SHAPES, FILES, POOLS, FORMATS = "shapes", "files", "pools", "formats"

BOTH: dict[str, str | frozenset[str]] = {
    "--onnx": TEXT,
    "--saveEngine": TEXT,
    "--loadEngine": TEXT,
    "--getPlanVersionOnly": FLAG,
    "--minShapes": SHAPES,
    "--optShapes": SHAPES,
    "--maxShapes": SHAPES,
    "--profile": WHOLE,
    "--inputIOFormats": FORMATS,
    "--outputIOFormats": FORMATS,
    "--memPoolSize": POOLS,
    "--avgTiming": WHOLE,
    "--refit": FLAG,
    "--stripWeights": FLAG,
    "--stripAllWeights": FLAG,
    "--versionCompatible": FLAG,
    "--vc": FLAG,
    "--excludeLeanRuntime": FLAG,
    "--monitorMemory": FLAG,
    "--noTF32": FLAG,
    "--stronglyTyped": FLAG,
    "--skipInference": FLAG,
    "--directIO": FLAG,
    "--sparsity": frozenset({"disable", "enable", "force"}),
    "--profilingVerbosity": frozenset({"layer_names_only", "none", "detailed", "default", "verbose"}),
    "--noBuilderCache": FLAG,
    "--noCompilationCache": FLAG,
    "--timingCacheFile": TEXT,
    "--errorOnTimingCacheMiss": FLAG,
    "--builderOptimizationLevel": WHOLE,
    "--maxTactics": WHOLE,
    "--runtimePlatform": frozenset({"SameAsBuild", "WindowsAMD64"}),
    "--hardwareCompatibilityLevel": frozenset({"none", "ampere+", "sameComputeCapability"}),
    "--maxAuxStreams": WHOLE,
    "--tempdir": TEXT,
    "--tilingOptimizationLevel": WHOLE,
    "--l2LimitForTiling": WHOLE,
    "--device": WHOLE,
    "--plugins": TEXT,
    "--staticPlugins": TEXT,
    "--dynamicPlugins": TEXT,
    "--setPluginsToSerialize": TEXT,
    "--ignoreParsedPluginLibs": FLAG,
    "--infStreams": WHOLE,
    "--iterations": WHOLE,
    "--duration": NUMBER,
    "--warmUp": NUMBER,
    "--noDataTransfers": FLAG,
    "--useSpinWait": FLAG,
    "--useCudaGraph": FLAG,
    "--separateProfileRun": FLAG,
    "--loadInputs": FILES,
    "--shapes": SHAPES,
    "--useProfile": WHOLE,
    "--allocationStrategy": frozenset({"static", "profile", "runtime"}),
    "--refitFromOnnx": TEXT,
    "--avgRuns": WHOLE,
    "--percentile": PERCENTILES,
    "--verbose": FLAG,
    "--dumpLayerInfo": FLAG,
    "--exportTimes": TEXT,
    "--exportOutput": TEXT,
    "--exportProfile": TEXT,
    "--exportLayerInfo": TEXT,
}
"""Options by how their value is read; a set holds all values that are taken."""

REMOVED_IN_11: dict[str, str | frozenset[str]] = {
    "--fp16": FLAG,
    "--bf16": FLAG,
    "--int8": FLAG,
    "--fp8": FLAG,
    "--int4": FLAG,
    "--best": FLAG,
    "--calib": TEXT,
    "--calibProfile": WHOLE,
    "--minShapesCalib": SHAPES,
    "--optShapesCalib": SHAPES,
    "--maxShapesCalib": SHAPES,
    "--precisionConstraints": frozenset({"obey", "prefer", "none"}),
    "--layerPrecisions": TEXT,
    "--layerOutputTypes": TEXT,
    "--restricted": FLAG,
    "--weightless": FLAG,
}

NEW_IN_11: dict[str, str | frozenset[str]] = {
    "--noCudaGraph": FLAG,
    "--noSpinWait": FLAG,
    "--includeDataTransfers": FLAG,
    "--loadRefOutputs": FILES,
    "--accuracyThreshold": NUMBER,
    "--cpuOnly": FLAG,
}

GONE_BEFORE_10 = ("--workspace", "--buildOnly", "--explicitBatch", "--uff", "--maxBatch")

OPTIONS = {10: BOTH | REMOVED_IN_11, 11: BOTH | NEW_IN_11}

NO_EFFECT_IN_11 = ("--stronglyTyped", "--useCudaGraph", "--useSpinWait", "--noDataTransfers", "--separateProfileRun")
WEAKLY_TYPED = ("--fp16", "--bf16", "--int8", "--fp8", "--int4", "--best")
REPEATABLE = ("--plugins", "--staticPlugins", "--dynamicPlugins", "--setPluginsToSerialize")

TYPES_OF_10 = {"fp32", "fp16", "bf16", "int8", "fp8", "int32", "int64", "bool", "uint8", "int4"}
FORMAT_NAMES = {"chw", "chw2", "chw4", "chw16", "chw32", "cdhw32", "hwc", "hwc8", "hwc16", "dhwc", "dhwc8"}
FORMAT_NAMES |= {"dla_linear", "dla_hwc4"}
POOL_NAMES = {"workspace", "dlaSRAM", "dlaLocalDRAM", "dlaGlobalDRAM", "tacticSharedMem"}
UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SHAPE_OPTIONS = ("--minShapes", "--optShapes", "--maxShapes")

Shapes = dict[str, tuple[int, ...]]


class Refused(Exception):
    """The parser ends the call: exit code 1."""


@dataclass
class Read:
    """What a command line comes to: flags, values, and the three shapes of every profile."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, list[object]] = field(default_factory=dict)
    profiles: list[dict[str, Shapes]] = field(default_factory=list)

    def value(self, option: str) -> object:
        """The only value of an option."""
        (value,) = self.values[option]
        return value


def read(command: list[str] | tuple[str, ...], major: int) -> Read:
    """What trtexec of this version makes of a command line.

    Raises:
        Refused: it ends the call.
    """
    command_line = Read()
    waiting: list[str] = []
    for part in command[1:]:
        option, equals, value = part.partition("=")
        if option not in OPTIONS[major]:
            raise Refused(f"Unknown option: {option} {value}")
        if waiting and option in _SHAPE_OPTIONS and option in waiting:
            waiting.remove(option)
            command_line.profiles[-1][option] = _shapes(value)
            continue
        if waiting and option not in _SHAPE_OPTIONS and len(waiting) < 3:
            raise Refused(f"Found invalid or missing shape spec at profile index {len(command_line.profiles) - 1}")
        if option == "--profile":
            if _parse_integer(value) != len(command_line.profiles):
                raise Refused("Optimization profile index cannot be the same.")
            command_line.profiles.append({})
            waiting = list(_SHAPE_OPTIONS)
            continue
        _take(command_line, option, value if equals else "", major)
    if waiting and len(waiting) == 3:
        raise Refused("Found invalid or missing shape spec")
    _refuse_together(command_line, major)
    return command_line


def _take(command_line: Read, option: str, value: str, major: int) -> None:
    kind = OPTIONS[major][option]
    if kind == FLAG:
        command_line.flags.add(option)
        return
    if option in command_line.values and option not in REPEATABLE:
        raise Refused("Multiple --minShapes/--optShapes/--maxShapes without --profile are not allowed.")
    if isinstance(kind, frozenset):
        if value not in kind:
            raise Refused(f"Unknown {option}: {value}")
        command_line.values.setdefault(option, []).append(value)
        return
    command_line.values.setdefault(option, []).append(_READERS[kind](value, major))
    if option in _SHAPE_OPTIONS:
        if len(command_line.profiles) > 1:
            raise Refused("Multiple --minShapes/--optShapes/--maxShapes without --profile are not allowed.")
        command_line.profiles = command_line.profiles or [{}]
        command_line.profiles[0][option] = _shapes(value)


def _refuse_together(command_line: Read, major: int) -> None:
    if "--onnx" not in command_line.values and "--loadEngine" not in command_line.values:
        raise Refused("Model missing or format not recognized")
    if "--loadEngine" in command_line.values and "--saveEngine" in command_line.values:
        raise Refused("Incompatible load and save engine options selected")
    if major == 10 and "--stronglyTyped" in command_line.flags and command_line.flags & set(WEAKLY_TYPED):
        raise Refused("not allowed if graph is strongly typed")


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator) if text else []


def _named(entry: str) -> tuple[str, str]:
    """`name:value`, cut at the last colon, or behind the second of two quotes."""
    pieces = entry.split("'")
    if len(pieces) == 3:
        return pieces[0] + pieces[1], pieces[2][1:]
    if len(pieces) != 1:
        raise Refused("Found invalid number of 's when parsing")
    if ":" not in entry:
        raise Refused(f"conversion failure: {entry}")
    name, _, value = entry.rpartition(":")
    return name, value


def _shapes(text: str) -> Shapes:
    return {name: _dims(value) for name, value in map(_named, _split(text, ","))}


def _dims(text: str) -> tuple[int, ...]:
    """Sizes, or `scalar`; nothing at all stands for it too, but not to the parsers that drop what ends a list."""
    return () if text == "scalar" else tuple(_parse_integer(size) for size in text.split("x"))


def _parse_integer(text: str) -> int:
    """As `std::stoi`, but that digits followed by something else are refused: they are always a mistake."""
    digits = text.removeprefix("-")
    if not digits.isdecimal() or int(digits) >= 2**31:
        raise Refused(f"stoi: {text}")
    return int(text)


def _bytes(text: str) -> float:
    """A size: MiB where it has no unit; any number, as `std::stod`."""
    unit = text[-1]
    if unit.isdigit():
        return float(text) * UNITS["M"]
    if unit.upper() not in UNITS:
        raise Refused(f"invalid unit specifier '{unit}'")
    try:
        return float(text[:-1]) * UNITS[unit.upper()]
    except ValueError:
        raise Refused(f"stod: {text}") from None


def _format(entry: str, major: int) -> str:
    """One entry of a list of formats: TensorRT 10 wants `type:format`, 11 the format alone."""
    kind, colon, name = entry.rpartition(":")
    if (major == 10) != bool(colon):
        raise Refused(f"Invalid {'IOFormat' if major == 10 else 'TensorFormat'} {entry}")
    if major == 10 and kind not in TYPES_OF_10:
        raise Refused(f"Invalid DataType {kind}")
    if not set(name.split("+")) <= FORMAT_NAMES:
        raise Refused(f"Invalid TensorFormat {name}")
    return entry


def _pools(text: str) -> dict[str, float]:
    sizes = {name: _bytes(size) for name, size in map(_named, _split(text, ","))}
    if not set(sizes) <= POOL_NAMES:
        raise Refused("Unknown memory pool")
    return sizes


_READERS: dict[str, Callable[[str, int], object]] = {
    TEXT: lambda text, _: text,
    WHOLE: lambda text, _: _parse_integer(text),
    NUMBER: lambda text, _: float(text),
    SHAPES: lambda text, _: _shapes(text),
    FILES: lambda text, _: dict(_named(entry) for entry in _split(text, ",")),
    POOLS: lambda text, _: _pools(text),
    FORMATS: lambda text, major: [_format(entry, major) for entry in _split(text, ",")],
    PERCENTILES: lambda text, _: [float(entry) for entry in _split(text, ",")],
}
