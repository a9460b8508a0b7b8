"""The specs and targets that ship with plansmith work."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.config.loader import read_specs
from plansmith.config.target_names import runtime_names, target_names
from plansmith.config.targets import Target, load_target, require_dali, require_onnxruntime
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
def test_shipped_spec_is_accepted(path: Path) -> None:
    """A shipped spec is one that compile takes."""
    spec_file = read_specs(path, {})
    assert spec_file.several or spec_file.models[0].name == path.stem
    assert {model.spec.target for model in spec_file.models} <= set(target_names())


def test_starting_specs_exist() -> None:
    """There are specs to start from."""
    assert {read_specs(path, {}).several for path in SPECS} == {False, True}


def test_int8_example_has_enough_data() -> None:
    """The INT8 example has data where make puts them, and enough of them."""
    spec = read_specs(CONFIGS / "models" / "all-MiniLM-L6-v2-int8.yaml", {}).models[0].spec
    assert (spec.precision, spec.engine) == ("int8", "onnxruntime")
    assert spec.data is not None
    location = (CONFIGS / "models" / spec.data.path).resolve().relative_to(CONFIGS.resolve().parent)
    assert f"SENTENCES := {location}\n" in (CONFIGS.parent / "Makefile").read_text()
    sentences = real_sentences()
    assert len(set(sentences)) == len(sentences) >= spec.data.calibration + spec.data.evaluation >= 384
    assert not [sentence for sentence in sentences if sentence.splitlines() != [sentence]]


def test_targets_exist_in_order() -> None:
    """Every monthly release and every SageMaker image is a target, in order."""
    expected = ["local-cpu", *(f"sagemaker-{tag}" for tag in SAGEMAKER), *(f"triton-{tag}" for tag in MONTHS)]
    assert len(MONTHS) == 17
    assert runtime_names() == expected
    assert set(target_names()) == {*expected, *(f"{name}-cpu" for name in expected if name != "local-cpu")}


@pytest.mark.parametrize("name", runtime_names())
def test_shipped_target_matches_its_name(name: str) -> None:
    """A shipped target is for the devices that its name says and tells its sources."""
    target = load_target(name)
    assert target.name == name
    assert target.devices == (("cpu",) if name.endswith("-cpu") else ("gpu", "cpu"))
    assert target.device == target.devices[0]
    assert not target.images or set(target.images) == set(target.devices)
    assert all(name.partition("-")[2] in image for image in target.images.values())
    assert target.sources
    assert target.flavour == ("sagemaker" if name.startswith("sagemaker") else "triton")


def test_runtime_has_own_name() -> None:
    """A runtime runs CPU models under a name of its own with the same facts."""
    gpu, cpu = load_target("sagemaker-26.05"), load_target("sagemaker-26.05-cpu")
    assert (gpu.device, cpu.device) == ("gpu", "cpu")
    assert cpu.model_copy(update={"name": gpu.name, "device": gpu.device}) == gpu
    assert cpu.images["cpu"] == f"{gpu.images['gpu']}-cpu"
    with pytest.raises(EngineError, match="local-cpu-cpu"):
        load_target("local-cpu-cpu")


@pytest.mark.parametrize("field", ["triton", "cuda", "driver", "python", "tensorrt", "min_compute_capability", "dali"])
def test_later_release_never_older(field: str) -> None:
    """A later release never has an older version."""
    stated = [numbers(version) for target in tritons() if (version := getattr(target, field))]
    assert len(stated) >= 15
    for earlier, later in pairwise(stated):
        common = min(len(earlier), len(later))
        assert earlier[:common] <= later[:common]


@pytest.mark.parametrize("name", [name for name in runtime_names() if name not in UNKNOWN_DALI])
def test_dali_has_source(name: str) -> None:
    """Every target but one names its DALI and where that is from; what it has at least was inferred."""
    target = load_target(name)
    (source,) = [line for line in target.sources if line.startswith("dali: ")]
    assert require_dali(target)
    assert ("dali" in target.inferred) == (name != "local-cpu")
    assert "at least" not in source or "dali" in target.inferred


def test_monthly_release_is_own_server() -> None:
    """Each monthly release is a server of its own."""
    versions = [target.triton for target in tritons()]
    assert None not in versions
    assert len(set(versions)) == len(versions)


def test_onnx_runtime_grows_with_releases() -> None:
    """ONNX Runtime grows with the releases, and one version reads the same everywhere."""
    runtimes = [target.onnxruntime for target in tritons() if target.onnxruntime]
    for earlier, later in pairwise(runtimes):
        assert numbers(earlier.version) <= numbers(later.version)
        assert earlier.max_opset <= later.max_opset
        assert earlier.max_ir_version <= later.max_ir_version
    everywhere = {r for name in runtime_names() if (r := load_target(name).onnxruntime)}
    assert len({r.version for r in everywhere}) == len(everywhere)
    assert all(r.max_opset >= 18 for r in everywhere)


def test_newest_releases_lack_onnx_runtime() -> None:
    """Only the newest releases lack an ONNX Runtime, and they are refused with what to do."""
    assert {name for name in runtime_names() if load_target(name).onnxruntime is None} == UNKNOWN_RUNTIME
    with pytest.raises(EngineError, match=r"which ONNX Runtime triton-26\.09-cpu has") as refused:
        require_onnxruntime(load_target("triton-26.09-cpu"))
    assert "nvcr.io/nvidia/tritonserver:26.09-py3" in refused.value.remedy
    assert "--target COPY.yaml" in refused.value.remedy


def test_sagemaker_facts_match_release() -> None:
    """What was inferred for SageMaker is what the release of the same number has."""
    for tag in SAGEMAKER[1:]:
        ours, theirs = load_target(f"sagemaker-{tag}"), load_target(f"triton-{tag}")
        for field in set(ours.inferred) - {"tensorrt"}:
            assert getattr(ours, field) == getattr(theirs, field)


def test_default_target_matches_test_runtime() -> None:
    """The default target has the ONNX Runtime that the tests run with."""
    pinned = (CONFIGS.parent / "constraints.txt").read_text().splitlines()
    assert f"onnxruntime=={require_onnxruntime(load_target('local-cpu')).version}" in pinned


def test_own_file_is_target(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one's own is a target under its whole path."""
    own.write_bytes((CONFIGS / "targets" / "triton-26.09.yaml").read_bytes())
    monkeypatch.chdir(own.parent)
    target = load_target(own.name)
    assert (target.name, target.device) == (str(own), "gpu")
    assert target == load_target(str(own))
    assert target.triton == load_target("triton-26.09").triton
    with pytest.raises(EngineError) as refused:
        require_onnxruntime(target)
    assert refused.value.remedy.endswith(f"write it into {own}, as `onnxruntime:`")


def test_target_file_lies_beside_spec(tmp_path: Path) -> None:
    """A target file in a spec lies beside the spec."""
    (tmp_path / "model.yaml").write_text("source: hf:x\ntarget: ours.yaml\n")
    (beside,), (named,) = (read_specs(tmp_path / "model.yaml", o).models for o in ({}, {"target": "triton-26.08"}))
    assert beside.spec.target == str(tmp_path / "ours.yaml")
    assert named.spec.target == "triton-26.08"


START = {"description": "ours", "flavour": "triton", "devices": ["gpu"]}
BAD = {
    "an unknown key": ({"tensort": "10.16"}, "tensort: is unknown (did you mean tensorrt?)"),
    "a version without quotes": ({"python": 3.12}, "python: write the version in quotes, as YAML makes a number"),
    "words for a version": ({"cuda": "the newest"}, "cuda: String should match pattern"),
    "an unknown device": ({"devices": ["gpu", "tpu"]}, "devices.1: must be 'gpu' or 'cpu' (got 'tpu')"),
    "no device": ({"devices": []}, "devices names none"),
    "an inferred field that is not there": ({"inferred": ["cuda"]}, "inferred names cuda, which the target does not"),
    "an inferred field that is none": ({"inferred": ["weather"]}, "inferred names weather"),
    "half an ONNX Runtime": ({"onnxruntime": {"version": "1.28.0"}}, "onnxruntime.max_opset: is missing"),
}


@pytest.mark.parametrize(("values", "said"), BAD.values(), ids=BAD.keys())
def test_wrong_target_file_names_place(values: dict[str, Any], said: str, own: Path) -> None:
    """A target file with a problem is refused with the place."""
    own.write_text(yaml.safe_dump(START | values))
    with pytest.raises(EngineError) as refused:
        load_target(str(own))
    assert said in refused.value.message
    assert str(own) in refused.value.message


def test_target_file_problems_told_together(own: Path) -> None:
    """All problems of a target file are told at once."""
    own.write_text("flavour: sagemaker\ntriton: 2.72\ncolour: red\n")
    with pytest.raises(EngineError) as refused:
        load_target(str(own))
    lines = refused.value.message.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["description", "devices", "triton", "colour"]


@pytest.mark.parametrize(("text", "said"), [("a: [", "is not YAML"), ("", "must be a mapping"), (None, "cannot read")])
def test_non_target_file_is_said(text: str | None, said: str, own: Path) -> None:
    """A file that is not a target file is said not to be one."""
    if text is not None:
        own.write_text(text)
    with pytest.raises(EngineError, match=said):
        load_target(str(own))


@pytest.mark.parametrize(
    ("name", "near"),
    [("triton-26.8", "triton-26.08"), ("triton26.08-cpu", "triton-26.08-cpu"), ("local", "local-cpu")],
)
def test_mistyped_target_names_nearest(name: str, near: str) -> None:
    """A mistyped target is answered with the nearest names."""
    with pytest.raises(EngineError) as refused:
        load_target(name)
    assert near in refused.value.remedy
    assert refused.value.remedy.count("triton-") <= 3
