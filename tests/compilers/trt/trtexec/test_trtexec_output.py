"""What trtexec's logs are read as: versions, endings, figures; from excerpts of public issues."""

from __future__ import annotations

import pytest

from plansmith.compilers.trt.failures import failed_node, read_lines
from plansmith.compilers.trt.trtexec.output import TrtexecOutput, banner_version, read_output, tensorrt_version

from ....support.tensorrt import trtexec_logs as logs

BANNER_OF_10_16 = "&&&& {} TensorRT.trtexec [TensorRT v101601] [b11] # /opt/TensorRT-10.16.1.11/bin/trtexec --onnx=m\n"
BANNER_OF_11_1 = "&&&& {} TensorRT.trtexec [TensorRT v110100] [b106]\n"
BANNER_OF_8_4 = "&&&& {} TensorRT.trtexec [TensorRT v8402] # ./trtexec --onnx=end2end.onnx\n"
"""The last two as in public logs: a note on BERT in a repository, and open-mmlab/mmdeploy issue 1926."""


@pytest.mark.parametrize(
    ("number", "version"),
    [("101600", "10.16.0"), ("101303", "10.13.3"), ("110100", "11.1.0"), ("8602", "8.6.2"), ("8001", "8.0.1")],
)
def test_banner_number_is_version(number: str, version: str) -> None:
    """The number in the banner is a version."""
    assert tensorrt_version(number) == version


@pytest.mark.parametrize(
    ("banner", "version"), [(BANNER_OF_10_16, "10.16.1.11"), (BANNER_OF_11_1, "11.1.0.106"), (BANNER_OF_8_4, "8.4.2")]
)
def test_banner_names_version_and_build(banner: str, version: str) -> None:
    """The banner names the version and its build."""
    assert banner_version(banner.format("RUNNING")) == version
    assert read_output(banner.format("RUNNING")).version == version


def test_another_program_has_no_version() -> None:
    assert banner_version("TensorRT 10.16.1\n") == ""


@pytest.mark.parametrize(
    ("statuses", "ended"),
    [(["RUNNING"], ""), (["RUNNING", "PASSED"], "passed"), (["RUNNING", "FAILED"], "failed"), ([], "")],
)
def test_last_banner_tells_end(statuses: list[str], ended: str) -> None:
    """The last banner tells how it ended."""
    text = "\n".join(BANNER_OF_11_1.format(status) for status in statuses)
    assert read_output(text).ended == ended


def test_build_tells_size_and_memory() -> None:
    """A build tells its size, times and memory."""
    output = read_output(logs.ON_A_3090_WITH_10_12 + logs.BUILT_IN_2025)
    assert output.engine_mib == 231.019
    assert (output.build_seconds, output.generation_seconds, output.deserialize_seconds) == (104.774, 104.604, 0.21022)
    assert (output.peak_device_mib, output.peak_host_mib, output.now_mib) == (1392, None, (1, 674))
    assert (output.gpu_uuid, output.compute_capability) == ("GPU-4c431858-85e6-3a03-4064-fa6741957aa5", "8.6")
    assert output.speed is None
    assert not output.errors
    assert not output.warnings


def test_process_memory_told_either_order() -> None:
    """The memory of the process is told too, in either order of tags."""
    output = read_output(logs.BUILT_BY_PYTHON)
    assert (output.peak_device_mib, output.peak_host_mib) == (2308, 15105)
    assert output.generation_seconds == 133.836


def test_largest_memory_need_counts() -> None:
    """Of several builds, the largest need of memory counts."""
    smaller = logs.BUILT_IN_2025.replace("GPU 1392 MiB", "GPU 3 MiB")
    assert read_output(logs.BUILT_IN_2025 + smaller).peak_device_mib == 1392


def test_measurement_read_with_all_rows() -> None:
    """A measurement is read with all of its rows."""
    speed = read_output(logs.MEASURED_BY_10).speed
    assert speed is not None
    assert speed.queries_per_second == 130.298
    assert (speed.wall_seconds, speed.compute_seconds) == (3.00082, 2.96536)
    assert (speed.latency.minimum, speed.latency.maximum, speed.latency.mean) == (5.38672, 13.3664, 7.60628)
    assert speed.latency.percentiles == {"90": 10.2996, "95": 10.8698, "99": 12.9675}
    medians = [row.median for row in (speed.latency, speed.enqueue, speed.to_device, speed.compute, speed.to_host)]
    assert medians == [7.16092, 7.86694, 0.00814819, 7.14139, 0.00439453]


@pytest.mark.parametrize("row", ["Throughput", "Latency", "D2H Latency", "Total Host Walltime"])
def test_incomplete_measurement_is_none(row: str) -> None:
    """A measurement that lacks a row counts as none."""
    torn = "\n".join(line for line in logs.MEASURED_BY_10.splitlines() if f"] {row}:" not in line)
    assert read_output(torn).speed is None


@pytest.mark.parametrize("major", [10, 11])
def test_strong_typing_seen_in_options(major: int) -> None:
    """A strongly typed network is seen in the options that are printed."""
    banner = (BANNER_OF_10_16 if major == 10 else BANNER_OF_11_1).format("RUNNING")
    lines = "[01/24/2025-05:21:16] [I] avgTiming: 8\n[01/24/2025-05:21:16] [I] Precision: {}\n"
    assert read_output(banner + lines.format("Strongly Typed")).strongly_typed
    assert not read_output(banner + lines.format("FP32+FP16")).strongly_typed


def test_timing_cache_tells_traffic() -> None:
    """The timing cache tells what was read and written."""
    output = read_output(
        "[01/24/2025-05:21:16] [I] Loaded 12345 bytes of timing cache from /c/t\n"
        "[01/24/2025-05:22:16] [I] Saved 23456 bytes of timing cache to /c/t\n"
    )
    assert (output.cache_read_bytes, output.cache_written_bytes) == (12345, 23456)


def test_messages_told_without_dates() -> None:
    """Errors and warnings are told without dates tags and dumps."""
    output = read_output(logs.INVALID_NODE + logs.SKIPPED_TACTICS)
    assert output.errors[0] == 'ModelImporter.cpp:949: While parsing node number 146 [Tile -> "/Tile_output_0"]:'
    assert "Engine set up failed" in output.errors
    assert not [error for error in output.errors if "Reshape_2_output_0" in error]
    assert [warning[:17] for warning in output.warnings] == ["UNSUPPORTED_STATE", "Tactic Device req"]
    assert output.ended == "failed"
    assert output.version == "10.3.0"


def test_repeated_warning_told_once() -> None:
    """A warning that comes again is told once."""
    assert len(read_output(logs.SKIPPED_TACTICS * 3).warnings) == 2


@pytest.mark.parametrize("value", ["nan", "inf", "fast"])
def test_non_number_figure_is_none(value: str) -> None:
    """A figure that is not a number counts as none."""
    assert read_output(f"[01/24/2025-05:21:16] [I] Engine built in {value} sec.\n").build_seconds is None


def test_what_was_read_survives_json() -> None:
    output = read_output(logs.ON_A_3090_WITH_10_12 + logs.BUILT_IN_2025 + logs.MEASURED_BY_10 + logs.INVALID_NODE)
    assert TrtexecOutput.model_validate_json(output.model_dump_json()) == output


@pytest.mark.parametrize(
    ("log", "node"),
    [
        (logs.NO_PLUGIN_IN_10, "/TRTBatchedNMS (TRTBatchedNMS)"),
        (logs.NO_PLUGIN_BY_THE_PARSER, "/dense_motion_network/GridSample (GridSample3D)"),
        (logs.MIXED_INTEGERS, "Concat_43"),
        (logs.NO_PLUGIN_CREATOR, "/input_blocks.1/InstanceNormalization (InstanceNormalization)"),
        (logs.UNKNOWN, "a node"),
    ],
)
def test_node_found_however_named(log: str, node: str) -> None:
    """The node is found in any way that the parser names it."""
    assert str(failed_node(list(read_lines(log)))) == node


def test_attribute_name_is_not_node_name() -> None:
    """The name of an attribute is not the name of its node."""
    for log, operator in ((logs.NO_PLUGIN_IN_10, "TRTBatchedNMS"), (logs.NO_PLUGIN_CREATOR, "InstanceNormalization")):
        unnamed = "\n".join(line for line in log.splitlines() if not line.lstrip().startswith('name: "/'))
        assert unnamed != log.rstrip()
        assert str(failed_node(list(read_lines(unnamed)))) == f"an unnamed {operator}"
