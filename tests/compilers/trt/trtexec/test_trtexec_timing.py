"""The second call, which measures: both versions are told to do the same."""

from __future__ import annotations

import itertools

import pytest

from plansmith.compilers.trtexec.timing import Measurement, Switches, TimingCall, timing_command
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


def done(found: Read, major: int) -> Switches:
    """What a version does when it is told this."""
    own = BY_ITSELF[major]
    if major == 10:
        return Switches(
            cuda_graph="--useCudaGraph" in found.flags,
            spin_wait="--useSpinWait" in found.flags,
            transfers="--noDataTransfers" not in found.flags,
        )
    assert not found.flags & set(NO_EFFECT_IN_11)
    return Switches(
        cuda_graph=own.cuda_graph and "--noCudaGraph" not in found.flags,
        spin_wait=own.spin_wait and "--noSpinWait" not in found.flags,
        transfers=own.transfers or "--includeDataTransfers" in found.flags,
    )


@pytest.mark.parametrize("major", [10, 11])
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_any_version_does_what_the_switches_say(major: int, wanted: tuple[bool, bool, bool]) -> None:
    switches = Switches(cuda_graph=wanted[0], spin_wait=wanted[1], transfers=wanted[2])
    made = call(major, switches=switches)
    assert done(read(made.command, major), major) == switches
    assert made.switches == str(switches)


def test_by_default_both_versions_measure_alike_and_say_how() -> None:
    ten, eleven = call(10), call(11)
    assert done(read(ten.command, 10), 10) == done(read(eleven.command, 11), 11) == BY_ITSELF[10]
    assert ten.switches == eleven.switches
    assert ten.switches == "without a CUDA graph, blocking wait, transfers between host and device included"


@pytest.mark.parametrize("major", [10, 11])
def test_the_call_loads_the_plan_with_its_shapes_inputs_and_profile(major: int) -> None:
    found = read(call(major).command, major)
    assert found.value("--loadEngine") == "/b/model.plan"
    assert found.value("--shapes") == MEASUREMENT.shapes
    assert found.value("--loadInputs") == MEASUREMENT.inputs
    assert (found.value("--useProfile"), found.value("--exportTimes")) == (1, "/d/times.json")
    assert found.value("--percentile") == [50, 90, 95, 99]
    assert (found.value("--warmUp"), found.value("--duration")) == (500, 3)


def test_a_plan_of_fixed_shapes_is_measured_without_any() -> None:
    found = read(call(11, Measurement()).command, 11)
    assert not {"--shapes", "--useProfile", "--loadInputs", "--exportTimes"} & set(found.values)


def test_what_a_plan_needs_to_be_loaded_is_said() -> None:
    found = read(call(10, Measurement(plugins=("/p/one.so",), version_compatible=True)).command, 10)
    assert found.value("--staticPlugins") == "/p/one.so"
    assert "--versionCompatible" in found.flags


@pytest.mark.parametrize("path", ["/d/a,b.bin", "/d/it's.bin", "/d/c:drive.bin"])
def test_a_path_that_the_parser_would_cut_is_refused(path: str) -> None:
    with pytest.raises(EngineError, match="cannot read the path") as refused:
        call(11, Measurement(inputs={"x": path}))
    assert "folder" in refused.value.remedy


def test_other_versions_are_not_guessed_at() -> None:
    with pytest.raises(EngineError, match="10 and 11"):
        call(12)


def test_a_measurement_survives_json() -> None:
    assert Measurement.model_validate_json(MEASUREMENT.model_dump_json()) == MEASUREMENT
