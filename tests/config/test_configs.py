"""The specs and targets that ship with plansmith work."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.config.loader import read_specs
from plansmith.config.target.names import runtime_names, target_names
from plansmith.config.target.targets import Target, load_target, require_dali, require_onnxruntime
from plansmith.errors import EngineError

from ..support.real_sentences import real_sentences

CONFIGS = Path(__file__).parents[2] / "configs"
SPECS = sorted((CONFIGS / "models").glob("*.yaml"))
MONTHS = [f"25.{month:02}" for month in range(6, 13)] + [f"26.{month:02}" for month in range(1, 11)]
SAGEMAKER = ["25.04", "25.09", "26.05"]
UNKNOWN_DALI = {"triton-26.03"}
UNKNOWN_RUNTIME = {"triton-26.09", "triton-26.10"}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A target file that a user wrote."""
    return tmp_path / "our target.yaml"


def tritons() -> list[Target]:
    return [load_target(f"triton-{month}") for month in MONTHS]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_is_one_that_compile_takes(path: Path) -> None:
    found = read_specs(path, {})
    assert found.several or found.models[0].name == path.stem
    assert {model.spec.target for model in found.models} <= set(target_names())


def test_there_are_specs_to_start_from() -> None:
    assert {read_specs(path, {}).several for path in SPECS} == {False, True}


def test_the_int8_example_has_data_where_make_puts_them_and_enough_of_them() -> None:
    spec = read_specs(CONFIGS / "models" / "all-MiniLM-L6-v2-int8.yaml", {}).models[0].spec
    assert (spec.precision, spec.engine) == ("int8", "onnxruntime")
    assert spec.data is not None
    made = (CONFIGS / "models" / spec.data.path).resolve().relative_to(CONFIGS.resolve().parent)
    assert f"SENTENCES := {made}\n" in (CONFIGS.parent / "Makefile").read_text()
    sentences = real_sentences()
    assert len(set(sentences)) == len(sentences) >= spec.data.calibration + spec.data.evaluation >= 384
    assert not [sentence for sentence in sentences if sentence.splitlines() != [sentence]]


def test_every_monthly_release_and_every_sagemaker_image_is_a_target_in_order() -> None:
    expected = ["local-cpu", *(f"sagemaker-{tag}" for tag in SAGEMAKER), *(f"triton-{tag}" for tag in MONTHS)]
    assert len(MONTHS) == 17
    assert runtime_names() == expected
    assert set(target_names()) == {*expected, *(f"{name}-cpu" for name in expected if name != "local-cpu")}


@pytest.mark.parametrize("name", runtime_names())
def test_a_shipped_target_is_for_the_devices_that_its_name_says_and_tells_its_sources(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.devices == (("cpu",) if name.endswith("-cpu") else ("gpu", "cpu"))
    assert target.device == target.devices[0]
    assert not target.images or set(target.images) == set(target.devices)
    assert all(name.partition("-")[2] in image for image in target.images.values())
    assert target.sources
    assert target.flavour == ("sagemaker" if name.startswith("sagemaker") else "triton")


def test_a_runtime_runs_cpu_models_under_a_name_of_their_own_with_the_same_facts() -> None:
    gpu, cpu = load_target("sagemaker-26.05"), load_target("sagemaker-26.05-cpu")
    assert (gpu.device, cpu.device) == ("gpu", "cpu")
    assert cpu.model_copy(update={"name": gpu.name, "device": gpu.device}) == gpu
    assert cpu.images["cpu"] == f"{gpu.images['gpu']}-cpu"
    with pytest.raises(EngineError, match="local-cpu-cpu"):
        load_target("local-cpu-cpu")


@pytest.mark.parametrize("field", ["triton", "cuda", "driver", "python", "tensorrt", "min_compute_capability", "dali"])
def test_a_later_release_never_has_an_older_version(field: str) -> None:
    stated = [numbers(version) for target in tritons() if (version := getattr(target, field))]
    assert len(stated) >= 15
    for earlier, later in pairwise(stated):
        common = min(len(earlier), len(later))
        assert earlier[:common] <= later[:common]


@pytest.mark.parametrize("name", [name for name in runtime_names() if name not in UNKNOWN_DALI])
def test_dali_has_source(name: str) -> None:
    """Every target but one names its DALI and where that is from; what it has at least was inferred."""
    target = load_target(name)
    (source,) = [one for one in target.sources if one.startswith("dali: ")]
    assert require_dali(target)
    assert ("dali" in target.inferred) == (name != "local-cpu")
    assert "at least" not in source or "dali" in target.inferred


def test_each_monthly_release_is_one_server_of_its_own() -> None:
    versions = [target.triton for target in tritons()]
    assert None not in versions
    assert len(set(versions)) == len(versions)


def test_onnx_runtime_grows_with_the_releases_and_one_version_reads_the_same_everywhere() -> None:
    runtimes = [target.onnxruntime for target in tritons() if target.onnxruntime]
    for earlier, later in pairwise(runtimes):
        assert numbers(earlier.version) <= numbers(later.version)
        assert earlier.max_opset <= later.max_opset
        assert earlier.max_ir_version <= later.max_ir_version
    everywhere = {r for name in runtime_names() if (r := load_target(name).onnxruntime)}
    assert len({r.version for r in everywhere}) == len(everywhere)
    assert all(r.max_opset >= 18 for r in everywhere)


def test_only_the_newest_releases_lack_an_onnx_runtime_and_are_refused_with_what_to_do() -> None:
    assert {name for name in runtime_names() if load_target(name).onnxruntime is None} == UNKNOWN_RUNTIME
    with pytest.raises(EngineError, match=r"which ONNX Runtime triton-26\.09-cpu has") as refused:
        require_onnxruntime(load_target("triton-26.09-cpu"))
    assert "nvcr.io/nvidia/tritonserver:26.09-py3" in refused.value.remedy
    assert "--target COPY.yaml" in refused.value.remedy


def test_what_was_inferred_for_sagemaker_is_what_the_release_of_the_same_number_has() -> None:
    for tag in SAGEMAKER[1:]:
        ours, theirs = load_target(f"sagemaker-{tag}"), load_target(f"triton-{tag}")
        for field in set(ours.inferred) - {"tensorrt"}:
            assert getattr(ours, field) == getattr(theirs, field)


def test_the_default_target_has_the_onnx_runtime_that_the_tests_run_with() -> None:
    pinned = (CONFIGS.parent / "constraints.txt").read_text().splitlines()
    assert f"onnxruntime=={require_onnxruntime(load_target('local-cpu')).version}" in pinned


def test_a_file_of_ones_own_is_a_target_under_its_whole_path(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.write_bytes((CONFIGS / "targets" / "triton-26.09.yaml").read_bytes())
    monkeypatch.chdir(own.parent)
    target = load_target(own.name)
    assert (target.name, target.device) == (str(own), "gpu")
    assert target == load_target(str(own))
    assert target.triton == load_target("triton-26.09").triton
    with pytest.raises(EngineError) as refused:
        require_onnxruntime(target)
    assert refused.value.remedy.endswith(f"write it into {own}, as `onnxruntime:`")


def test_a_target_file_in_a_spec_lies_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("source: hf:x\ntarget: ours.yaml\n")
    (beside,), (named,) = (read_specs(tmp_path / "model.yaml", o).models for o in ({}, {"target": "triton-26.08"}))
    assert beside.spec.target == str(tmp_path / "ours.yaml")
    assert named.spec.target == "triton-26.08"


START = {"description": "ours", "flavour": "triton", "devices": ["gpu"]}
BAD = {
    "an unknown key": ({"tensort": "10.16"}, "tensort: is unknown"),
    "a version without quotes": ({"python": 3.12}, "python: write the version in quotes, as YAML makes a number"),
    "words for a version": ({"cuda": "the newest"}, "cuda: String should match pattern"),
    "an unknown device": ({"devices": ["gpu", "tpu"]}, "devices.1: must be 'gpu' or 'cpu' (got 'tpu')"),
    "no device": ({"devices": []}, "devices names none"),
    "an inferred field that is not there": ({"inferred": ["cuda"]}, "inferred names cuda, which the target does not"),
    "an inferred field that is none": ({"inferred": ["weather"]}, "inferred names weather"),
    "half an ONNX Runtime": ({"onnxruntime": {"version": "1.28.0"}}, "onnxruntime.max_opset: is missing"),
}


@pytest.mark.parametrize(("values", "said"), BAD.values(), ids=BAD.keys())
def test_a_target_file_with_a_problem_is_refused_with_the_place(values: dict[str, Any], said: str, own: Path) -> None:
    own.write_text(yaml.safe_dump(START | values))
    with pytest.raises(EngineError) as refused:
        load_target(str(own))
    assert said in refused.value.message
    assert str(own) in refused.value.message


def test_all_problems_of_a_target_file_are_told_at_once(own: Path) -> None:
    own.write_text("flavour: sagemaker\ntriton: 2.72\ncolour: red\n")
    with pytest.raises(EngineError) as refused:
        load_target(str(own))
    lines = refused.value.message.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["description", "devices", "triton", "colour"]


@pytest.mark.parametrize(("text", "said"), [("a: [", "is not YAML"), ("", "must be a mapping"), (None, "cannot read")])
def test_what_is_no_target_file_is_said_to_be_none(text: str | None, said: str, own: Path) -> None:
    if text is not None:
        own.write_text(text)
    with pytest.raises(EngineError, match=said):
        load_target(str(own))


@pytest.mark.parametrize(
    ("given", "near"),
    [("triton-26.8", "triton-26.08"), ("triton26.08-cpu", "triton-26.08-cpu"), ("local", "local-cpu")],
)
def test_a_mistyped_target_is_answered_with_the_nearest_names(given: str, near: str) -> None:
    with pytest.raises(EngineError) as refused:
        load_target(given)
    assert near in refused.value.remedy
    assert refused.value.remedy.count("triton-") <= 3
