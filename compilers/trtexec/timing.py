"""The command line with which trtexec measures a plan: a second call, so that no build stands beside it.

What 10 does by itself and what 11 does differs in three ways (InferenceOptions::parse in sampleOptions.cpp): 11
captures a CUDA graph, waits by spinning and leaves out the transfers between host and device, and 10 does none of
this. Here both do what `Switches` says, so that their figures compare.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plansmith.compilers.trtexec.command import MAJORS, named_list, sizes
from plansmith.errors import EngineError
from plansmith.records.model import Record

PERCENTILES = (50, 90, 95, 99)


class Switches(Record):
    """What a measurement does besides computing: by default what trtexec 10 does by itself."""

    cuda_graph: bool = False
    spin_wait: bool = False
    transfers: bool = True

    def __str__(self) -> str:
        return ", ".join(
            (
                "with a CUDA graph" if self.cuda_graph else "without a CUDA graph",
                "spin wait" if self.spin_wait else "blocking wait",
                "transfers between host and device included" if self.transfers else "transfers left out",
            )
        )


class Measurement(Record):
    """What is measured, and for how long.

    `shapes`: of every input whose shape varies, none for a plan whose shapes are all fixed; `inputs`: the file of every
    input, raw values in C order: trtexec draws random ones for an input that is left out, which a model of token ids
    may take for places outside its table; `profile`: the number of the optimization profile; `warm_up_ms` and
    `duration_seconds`: how long it runs before and while it measures, at least; `times`: the file that takes the times
    of every query as JSON, empty for none; `plugins`: libraries that the plan needs; `version_compatible`: the plan is
    one, and brings code of its own that must be let run; `weights`: the graph that a plan without its weights gets them
    from, empty for one that has them.
    """

    shapes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    profile: int = 0
    warm_up_ms: int = 500
    duration_seconds: int = 3
    times: str = ""
    plugins: tuple[str, ...] = ()
    version_compatible: bool = False
    weights: str = ""


class TimingCall(Record):
    """A command that measures, and in words how: to be kept beside its figures."""

    command: tuple[str, ...]
    switches: str


def timing_command(
    measurement: Measurement,
    *,
    program: str,
    plan: str,
    major: int,
    switches: Switches | None = None,
    gpu_index: int | None = None,
) -> TimingCall:
    """The arguments that measure a plan and nothing else.

    Args:
        measurement: what is measured.
        program: trtexec.
        plan: the file to measure.
        major: TensorRT's first number, which decides what the program does by itself.
        switches: what any version is to do; what 10 does by itself when None.
        gpu_index: CUDA's number of the GPU; the first that the program sees when None.

    Raises:
        EngineError: a name or a path that trtexec's parser cannot read.
    """
    if major not in MAJORS:
        raise EngineError(
            f"the options of trtexec are known for TensorRT 10 and 11, not for {major}",
            remedy="measure with the trtexec of the target's release",
        )
    chosen = switches if switches is not None else Switches()
    shapes = {name: sizes(dims) for name, dims in measurement.shapes.items()}
    said = {
        f"--useProfile={measurement.profile}": bool(shapes),
        f"--shapes={named_list(shapes)}": bool(shapes),
        f"--loadInputs={_files(measurement.inputs)}": bool(measurement.inputs),
        "--versionCompatible": measurement.version_compatible,
        "--refit": bool(measurement.weights),
        f"--refitFromOnnx={measurement.weights}": bool(measurement.weights),
        **{f"--staticPlugins={library}": True for library in measurement.plugins},
        f"--warmUp={measurement.warm_up_ms}": True,
        f"--duration={measurement.duration_seconds}": True,
        f"--percentile={','.join(map(str, PERCENTILES))}": True,
        f"--exportTimes={measurement.times}": bool(measurement.times),
        f"--device={gpu_index}": gpu_index is not None,
    }
    options = [option for option, is_wanted in said.items() if is_wanted]
    command = (program, f"--loadEngine={plan}", *options, *_switch_options(chosen, major))
    return TimingCall(command=command, switches=str(chosen))


def _switch_options(switches: Switches, major: int) -> list[str]:
    """What makes a version do what it would not by itself."""
    if major > 10:
        said = {
            "--noCudaGraph": not switches.cuda_graph,
            "--noSpinWait": not switches.spin_wait,
            "--includeDataTransfers": switches.transfers,
        }
    else:
        said = {
            "--useCudaGraph": switches.cuda_graph,
            "--useSpinWait": switches.spin_wait,
            "--noDataTransfers": not switches.transfers,
        }
    return [option for option, is_wanted in said.items() if is_wanted]


def _files(inputs: Mapping[str, str]) -> str:
    """As for shapes; a path that holds a colon is only read to its end where the name stands in quotes."""
    for path in inputs.values():
        if set(path) & set(",':"):
            raise EngineError(
                f"trtexec cannot read the path {path!r}: a comma, a quote and a colon mean something else to it",
                remedy="put the inputs' files into a folder without one in its name",
            )
    return named_list(inputs)
