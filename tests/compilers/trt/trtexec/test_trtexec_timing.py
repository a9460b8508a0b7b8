"""The second call, which measures: both versions are told to do the same."""

from __future__ import annotations

import itertools

import pytest

from plansmith.compilers.trt.trtexec.command import Measurement, Switches, TimingCall, timing_command
from plansmith.errors import EngineError

from ....support.tensorrt.trtexec_options import NO_EFFECT_IN_11, Read, read

MEASUREMENT = Measurement(
    shapes={"input_ids": (8, 64), "mask:0": (8, 64)},
    inputs={"input_ids": "/d/ids.bin", "mask:0": "/d/mask.bin"},
    profile=1,
    times="/d/times.json",
)
BY_ITSELF = {
    10: Switches(cuda_graph=False, spin_wait=False, transfers=True),
    11: Switches(cuda_graph=True, spin_wait=True, transfers=False),
}
"""What the versions do without being told (InferenceOptions in sampleOptions.h and its parser)."""


def call(major: int, measurement: Measurement = MEASUREMENT, switches: Switches | None = None) -> TimingCall:
    return timing_command(measurement, program="trtexec", plan="/b/model.plan", major=major, switches=switches)


def done(command_line: Read, major: int) -> Switches:
    """What a version does when it is told this."""
    own = BY_ITSELF[major]
    if major == 10:
        return Switches(
            cuda_graph="--useCudaGraph" in command_line.flags,
            spin_wait="--useSpinWait" in command_line.flags,
            transfers="--noDataTransfers" not in command_line.flags,
        )
    assert not command_line.flags & set(NO_EFFECT_IN_11)
    return Switches(
        cuda_graph=own.cuda_graph and "--noCudaGraph" not in command_line.flags,
        spin_wait=own.spin_wait and "--noSpinWait" not in command_line.flags,
        transfers=own.transfers or "--includeDataTransfers" in command_line.flags,
    )


@pytest.mark.parametrize("major", [10, 11])
@pytest.mark.parametrize("expected", list(itertools.product([False, True], repeat=3)))
def test_versions_follow_switches(major: int, expected: tuple[bool, bool, bool]) -> None:
    """Any version does what the switches say."""
    switches = Switches(cuda_graph=expected[0], spin_wait=expected[1], transfers=expected[2])
    invocation = call(major, switches=switches)
    assert done(read(invocation.command, major), major) == switches
    assert invocation.switches == str(switches)


def test_versions_measure_alike_by_default() -> None:
    """By default both versions measure alike and say how."""
    ten, eleven = call(10), call(11)
    assert done(read(ten.command, 10), 10) == done(read(eleven.command, 11), 11) == BY_ITSELF[10]
    assert ten.switches == eleven.switches
    assert ten.switches == "without a CUDA graph, blocking wait, transfers between host and device included"


@pytest.mark.parametrize("major", [10, 11])
def test_call_loads_plan_and_inputs(major: int) -> None:
    """The call loads the plan with its shapes, inputs and profile."""
    command_line = read(call(major).command, major)
    assert command_line.value("--loadEngine") == "/b/model.plan"
    assert command_line.value("--shapes") == MEASUREMENT.shapes
    assert command_line.value("--loadInputs") == MEASUREMENT.inputs
    assert (command_line.value("--useProfile"), command_line.value("--exportTimes")) == (1, "/d/times.json")
    assert command_line.value("--percentile") == [50, 90, 95, 99]
    assert (command_line.value("--warmUp"), command_line.value("--duration")) == (500, 3)


def test_fixed_plan_measured_without_shapes() -> None:
    """A plan of fixed shapes is measured without any shapes."""
    command_line = read(call(11, Measurement()).command, 11)
    assert not {"--shapes", "--useProfile", "--loadInputs", "--exportTimes"} & set(command_line.values)


def test_plan_requirements_are_said() -> None:
    """What a plan needs to be loaded is said."""
    command_line = read(call(10, Measurement(plugins=("/p/one.so",), version_compatible=True)).command, 10)
    assert command_line.value("--staticPlugins") == "/p/one.so"
    assert "--versionCompatible" in command_line.flags


@pytest.mark.parametrize("path", ["/d/a,b.bin", "/d/it's.bin", "/d/c:drive.bin"])
def test_cut_path_refused(path: str) -> None:
    """A path that the parser would cut is refused."""
    with pytest.raises(EngineError, match="cannot read the path") as refused:
        call(11, Measurement(inputs={"x": path}))
    assert "folder" in refused.value.remedy


def test_other_versions_not_guessed() -> None:
    """Other versions are not guessed at."""
    with pytest.raises(EngineError, match="10 and 11"):
        call(12)


def test_a_measurement_survives_json() -> None:
    assert Measurement.model_validate_json(MEASUREMENT.model_dump_json()) == MEASUREMENT
