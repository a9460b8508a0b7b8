"""config.pbtxt of TensorRT plans says what Triton's TensorRT backend asks for, and refuses what it cannot serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.config.target.targets import load_target
from plansmith.config.triton import TritonOptions
from plansmith.config.triton.batching import DynamicBatching
from plansmith.config.triton.instances import InstanceGroup
from plansmith.errors import EngineError, UsageError
from plansmith.records.engine import Engine, OptimizationProfile
from plansmith.records.model import (
    Device,
    InputRange,
    OnnxModel,
    Precision,
    ReferenceSet,
)
from plansmith.steps.release.package import build_package
from plansmith.steps.runner import Listener, StageRunner, StepResult
from plansmith.triton.config.model_config import completions, contradictions, parse_config, text_of, with_cpu_instances
from plansmith.triton.config.overrides import configure
from plansmith.triton.config.plan_config import (
    instances_take,
    largest_batch,
    make_plan_config,
    plan_files,
    plan_package,
)
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ...support.made import made_model
from ...support.tensorrt.engines import IDS, TWO_INPUTS, engine, profile, tensor, told
from ...support.tensorrt.plan_files import plan as plan_bytes


def written(of: Engine, *, device: Device = "gpu", options: TritonOptions | None = None) -> str:
    config = make_plan_config(plan_package("tiny", of), of, device)
    configure(config, options or TritonOptions())
    return text_of(config)


def config_of(of: Engine) -> Any:
    return parse_config(written(of))


def refused(of: Engine, device: Device = "gpu") -> str:
    with pytest.raises(EngineError) as refusal:
        written(of, device=device)
    assert refusal.value.remedy
    return refusal.value.message


def test_a_plan_with_a_moving_batch_is_batched_up_to_the_profiles_largest() -> None:
    config = config_of(engine())
    assert (config.backend, config.platform, config.max_batch_size) == ("tensorrt", "tensorrt_plan", 32)
    assert config.default_model_filename == "model.plan"
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    assert [list(entry.dims) for entry in (*config.input, *config.output)] == [[-1], [-1], [3]]
    assert {entry.data_type for entry in config.input} == {
        parse_config("input { data_type: TYPE_INT64 }").input[0].data_type
    }
    (group,) = config.instance_group
    assert (group.kind, list(group.profile)) == (group.KIND_GPU, [])
    assert not config.cc_model_filenames


def test_several_profiles_are_all_used_and_each_is_a_batch_to_wait_for() -> None:
    profiles = [
        profile("latency", ids="1x8:1x64:1x256", mask="1x8:1x64:1x256"),
        profile("throughput", ids="1x8:16x64:64x256", mask="1x8:16x64:64x256"),
        profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32"),
    ]
    config = config_of(engine(profiles=profiles))
    assert config.max_batch_size == 64
    assert list(config.instance_group[0].profile) == ["0", "1", "2"]
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 16]


def test_a_batch_of_one_alone_is_no_batching() -> None:
    config = config_of(engine(profiles=[profile(ids="1x8:1x64:1x256", mask="1x8:1x64:1x256")]))
    assert config.max_batch_size == 1
    assert not config.HasField("dynamic_batching")


def full(of: Engine) -> list[list[int]]:
    """The dims of a configuration that must not batch."""
    config = config_of(of)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    return [list(entry.dims) for entry in (*config.input, *config.output)]


def test_a_plan_of_fixed_shapes_is_not_batched_and_has_all_its_dims() -> None:
    fixed = engine(
        inputs=[tensor("x", (8, 3, 64, 64), "float32")], outputs=[tensor("y", (8, 10), "float32")], profiles=[]
    )
    assert full(fixed) == [[8, 3, 64, 64], [8, 10]]


def test_a_first_dim_that_is_no_batch_is_not_batched() -> None:
    turned = [tensor("ids", ("sequence", "batch")), tensor("mask", ("sequence", "batch"))]
    assert full(engine(inputs=turned)) == [[-1, -1], [-1, -1], [-1, 3]]
    assert full(engine(outputs=[tensor("scores", (1, 3), "float32")])) == [[-1, -1], [-1, -1], [1, 3]]


def test_a_batch_that_the_plan_itself_fixed_is_not_batched() -> None:
    assert full(engine(other={"ids": {"dims": (8, -1)}})) == [[8, -1], [-1, -1], [-1, 3]]


@pytest.mark.parametrize(
    "odd",
    [
        profile(ids="1x8:8x64:32x256", mask="1x8:8x64:16x256"),
        profile(ids="2x8:8x64:32x256", mask="2x8:8x64:32x256"),
        profile(ids="1x8:8x64:32x256"),
    ],
    ids=["two largest batches", "no single sample", "an input that it does not name"],
)
def test_a_profile_that_does_not_take_every_batch_is_not_batched(odd: OptimizationProfile) -> None:
    assert full(engine(profiles=[odd])) == [[-1, -1], [-1, -1], [-1, 3]]


def test_batches_between_two_profiles_are_not_made() -> None:
    few = profile("latency", ids="1x8:1x64:2x256", mask="1x8:1x64:2x256")
    beside, beyond = (
        profile("throughput", ids=f"{low}x8:16x64:16x256", mask=f"{low}x8:16x64:16x256") for low in (3, 4)
    )
    assert config_of(engine(profiles=[beside, few])).max_batch_size == 16
    assert full(engine(profiles=[few, beyond])) == [[-1, -1], [-1, -1], [-1, 3]]


def test_a_single_sample_is_taken_where_every_input_takes_one() -> None:
    assert full(engine(profiles=[profile(ids="1x8:8x64:32x256", mask="2x8:8x64:32x256")])) == [
        [-1, -1],
        [-1, -1],
        [-1, 3],
    ]


def test_dims_that_the_graph_names_and_the_plan_fixes_are_the_plans_and_the_other_way_round() -> None:
    given = engine(other={"ids": {"dims": (-1, 64)}, "scores": {"dims": (-1, -1)}})
    assert [list(entry.dims) for entry in (*config_of(given).input, *config_of(given).output)] == [[64], [-1], [3]]


def test_one_value_a_sample_has_a_dim_on_the_wire() -> None:
    config = config_of(engine(outputs=[tensor("score", ("batch",), "float32")]))
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape")
    assert not config.output[0].reshape.shape


def test_a_shape_tensor_is_marked_and_its_plan_is_not_batched() -> None:
    size = tensor("size", (2,))
    values = {"size": InputRange(min=(8, 8), opt=(64, 64), max=(256, 256))}
    by_plan = engine(inputs=[IDS, size], profiles=[profile(ids="1x8:8x64:32x256")], other={"size": {"is_shape": True}})
    by_profile = engine(inputs=[IDS, size], profiles=[profile(ids="1x8:8x64:32x256", values=values)])
    for given in (by_plan, by_profile):
        config = config_of(given)
        assert [entry.is_shape_tensor for entry in (*config.input, *config.output)] == [False, True, False]
        assert full(given) == [[-1, -1], [2], [-1, 3]]


@pytest.mark.parametrize(
    "layout", ["Channel major FP16 format where channel % 8 == 0", "Row major Int8 format", "HWC8"]
)
def test_a_layout_that_is_not_linear_is_marked(layout: str) -> None:
    config = config_of(engine(other={"scores": {"format": layout}}))
    assert [entry.is_non_linear_format_io for entry in (*config.input, *config.output)] == [False, False, True]


def test_a_layout_that_was_asked_for_is_marked_where_the_plan_tells_none() -> None:
    given = engine(other={"scores": {"format": ""}, "ids": {"format": ""}}, formats={"scores": "chw32", "ids": "chw"})
    assert [e.is_non_linear_format_io for e in (*config_of(given).input, *config_of(given).output)] == [
        False,
        False,
        True,
    ]
    plain = config_of(engine(other={"ids": {"format": "LINEAR"}}))
    assert not plain.input[0].is_non_linear_format_io


def test_plans_for_several_gpus_are_chosen_by_their_compute_capability() -> None:
    several = engine("L4", "A10G", "B200")
    files = {"8.9": "model_89.plan", "8.6": "model_86.plan", "10.0": "model_100.plan"}
    package = plan_package("tiny", several)
    assert plan_files(several) == package.capability_files == files
    assert package.model_files == tuple(files.values())
    config = config_of(several)
    assert dict(config.cc_model_filenames) == files
    assert config.default_model_filename == "model_89.plan"
    assert plan_files(engine("A10G")) == {"8.6": "model.plan"}
    assert plan_package("tiny", engine("A10G")).capability_files == {}


def test_what_triton_made_of_the_configuration_of_several_plans_is_compared() -> None:
    ours, theirs = (config_of(engine("L4", "A10G")) for _ in range(2))
    assert contradictions(ours, theirs) == []
    assert completions(ours, theirs) == {}
    theirs.parameters["x"].string_value = "y"
    assert completions(ours, theirs) == {"parameters": {"x": 'string_value: "y"\n'}}
    theirs.cc_model_filenames["8.6"] = "model.plan"
    (said,) = contradictions(ours, theirs)
    assert said.startswith("cc_model_filenames: wrote {")
    assert "'8.6': 'model_86.plan'" in said
    assert "'8.6': 'model.plan'" in said.partition("Triton has")[2]
    theirs = config_of(engine("L4", "A10G"))
    theirs.instance_group[0].profile.append("1")
    assert completions(ours, theirs) == {"instance_group[0].profile": ["1"]}


def test_what_the_server_has_to_be_started_with_is_in_the_package() -> None:
    assert plan_package("tiny", engine()).server_arguments == ()
    assert plan_package("tiny", engine(version_compatible=True)).server_arguments == (
        "--backend-config=tensorrt,version-compatible=true",
    )
    both = plan_package("tiny", engine(version_compatible=True, plugins=("/x/liba.so", "y/libb.so")))
    assert both.server_arguments[1] == "--backend-config=tensorrt,plugins=liba.so;libb.so"


DELAYED = TritonOptions(
    dynamic_batching=DynamicBatching(max_queue_delay_microseconds=700), instance_group=(InstanceGroup(count=3),)
)


def test_the_options_of_a_spec_reach_the_configuration_of_a_plan() -> None:
    config = parse_config(written(engine(), options=DELAYED))
    assert config.dynamic_batching.max_queue_delay_microseconds == 700
    assert config.instance_group[0].count == 3
    assert list(config.dynamic_batching.preferred_batch_size) == [8]


def test_a_spec_chooses_the_profiles_of_a_group_of_instances_and_the_preferred_batches() -> None:
    several = engine(profiles=[TWO_INPUTS, profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32")])
    given = {"instance_group": [{"profile": [1]}, {}], "dynamic_batching": {"preferred_batch_size": [2, 16]}}
    config = parse_config(written(several, options=TritonOptions.model_validate(given)))
    assert [list(group.profile) for group in config.instance_group] == [["1"], ["0", "1"]]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 16]


FEW = profile("few", ids="1x8:1x64:2x256", mask="1x8:1x64:2x256")
LONG = profile("long", ids="1x8:8x512:16x512", mask="1x8:8x512:16x512")


@pytest.mark.parametrize(
    ("groups", "taken"),
    [
        ([], {(1, 8), (2, 256), (3, 8), (16, 512)}),
        ([{"profile": [0]}], {(1, 8), (2, 256)}),
        ([{"profile": [1]}], {(1, 8), (3, 8), (16, 512), (2, 256)}),
        ([{"profile": [1]}, {"profile": [0]}], {(1, 8), (2, 256)}),
    ],
)
def test_what_may_reach_any_instance_has_to_fit_a_profile_of_each(groups: list[Any], taken: set[Any]) -> None:
    profiles = [FEW, LONG]
    options = TritonOptions.model_validate({"instance_group": groups})
    config = parse_config(written(engine(profiles=profiles), options=options))
    feeds = {
        shape: {"ids": np.zeros(shape), "mask": np.zeros(shape)} for shape in [(1, 8), (2, 256), (3, 8), (16, 512)]
    }
    assert {shape for shape, feed in feeds.items() if instances_take(config, profiles, feed)} == taken
    assert not instances_take(config, profiles, {"ids": np.zeros((17, 8)), "mask": np.zeros((17, 8))})
    assert instances_take(config, [], feeds[1, 8])


def test_instances_reach_as_far_as_their_own_profiles() -> None:
    apart = profile("apart", ids="3x8:8x64:32x256", mask="3x8:8x64:32x256")
    several = engine(profiles=[FEW, LONG, apart])
    reaches = {numbers: largest_batch(several, numbers) for numbers in [(0,), (1,), (0, 1), (0, 2), (2,)]}
    assert reaches == {(0,): 2, (1,): 16, (0, 1): 16, (0, 2): 32, (2,): 0}


def test_cpu_instances_are_refused() -> None:
    assert "they are for CPU instances" in refused(engine(), device="cpu")


def test_a_plan_without_its_weights_is_refused_until_they_are_put_back() -> None:
    assert "the plan for NVIDIA L4 is without its weights" in refused(engine(strip_weights=True))
    assert config_of(engine(strip_weights=True, plan={"refitted": True})).max_batch_size == 32


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "another dtype": ({"ids": {"dtype": "int32"}}, "ids is int32, and int64 in the graph"),
    "another rank": ({"ids": {"dims": (-1, 8, 8)}}, "ids has dims [-1, 8, 8], and ['batch', 'sequence'] in the graph"),
    "another size": ({"scores": {"dims": (-1, 4)}}, "scores has dims [-1, 4], and ['batch', 3] in the graph"),
    "another name": ({"mask": {"name": "mask.1"}}, "its graph has no mask.1"),
    "another direction": ({"scores": {"is_input": True}}, "scores is an input of the plan alone"),
}


@pytest.mark.parametrize(("other", "said"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_plan_with_other_inputs_or_outputs_than_its_graph_is_refused(other: dict[str, Any], said: str) -> None:
    assert said in refused(engine(other=other))


def test_every_problem_of_every_plan_is_told_at_once() -> None:
    found = refused(engine("L4", "A10G", other={"ids": {"dtype": "int32"}}, strip_weights=True), device="cpu")
    assert len(found.splitlines()) == 6


def test_what_trtexec_does_not_tell_of_is_the_graphs() -> None:
    part = {"builder": "trtexec", "tensors": (told(IDS, {"dtype": "", "format": ""}, is_input=True),)}
    config = config_of(engine(plan=part))
    assert (config.max_batch_size, list(config.input[1].dims)) == (32, [-1])
    assert config_of(engine(plan={"builder": "trtexec", "tensors": ()})).max_batch_size == 32
    assert "mask is not among its inputs and outputs" in refused(engine(plan=part | {"builder": "api"}))


def test_what_the_backend_cannot_carry_is_refused() -> None:
    odd = tensor("x", ("batch", 3), "float64")
    shapes = [profile(x="1x3:8x3:32x3")]
    assert "x has dtype float64" in refused(engine(inputs=[odd], profiles=shapes))
    scalar = engine(inputs=[tensor("x", (4,), "float32")], outputs=[tensor("y", (), "float32")], profiles=[])
    assert "y has no dims at all" in refused(scalar)


def test_a_release_has_each_plan_under_the_name_that_its_configuration_says(tmp_path: Path) -> None:
    several = engine("L4", "A10G")
    for capability, plan in several.plans.items():
        (tmp_path / "engine" / capability).mkdir(parents=True)
        (tmp_path / "engine" / plan.file).write_bytes(plan_bytes("10.16.0.72") + capability.encode())
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=Listener(), force=False, dry=False)
    compiled = StepResult(several, tmp_path / "engine", "a digest", cached=False)
    made = made_model(engine=compiled, onnx=exported(several, tmp_path))
    package = build_package(stages, "tiny", load_target("triton-26.03"), TritonOptions(), made)
    assert package is not None
    assert package.record == plan_package("tiny", several)
    config = parse_config((package.folder / "config.pbtxt").read_text())
    placed = {
        capability: (package.folder / "model" / file).read_bytes()[-3:]
        for capability, file in config.cc_model_filenames.items()
    }
    assert placed == {"8.9": b"8.9", "8.6": b"8.6"}
    with pytest.raises(EngineError, match="CPU instances"):
        build_package(stages, "tiny", load_target("triton-26.03-cpu"), TritonOptions(), made)
    stages.close()


def test_a_release_whose_instances_do_not_take_its_largest_batch_is_refused(tmp_path: Path) -> None:
    of = engine(profiles=[FEW, LONG])
    options = TritonOptions.model_validate({"instance_group": [{}, {"profile": [0]}]})
    made = made_model(engine=StepResult(of, tmp_path, "a digest", cached=False), onnx=exported(of, tmp_path))
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=Listener(), force=False, dry=False)
    with pytest.raises(UsageError, match=r"instance_group\.1\.profile: these take batches up to 2"):
        build_package(stages, "tiny", load_target("triton-26.03"), options, made)
    stages.close()


def exported(of: Engine, folder: Path) -> StepResult[OnnxModel]:
    """What plans were made from, as far as a release is concerned."""
    model = OnnxModel(
        components=of.components,
        axes={},
        mask_input=None,
        exporter="none",
        attempts=(),
        precision=Precision.FP16,
        reference=ReferenceSet(runtime="", data="", cases=()),
    )
    return StepResult(model, folder, "another", cached=False)


@pytest.mark.slow
def test_a_real_triton_takes_the_configuration_up_to_the_backend_that_it_lacks(
    installation: Installation, tmp_path: Path
) -> None:
    """Its core reads and checks a configuration before it looks for the backend; one with a mistake shows that."""
    if installation.real_tensorrt:
        pytest.skip("this Triton has the backend, which wants a real plan")
    size = tensor("size", (2,))
    several = [TWO_INPUTS, profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32")]
    texts = {
        "batched": written(engine("L4", "A10G", profiles=several)),
        "shapes": written(engine(inputs=[IDS, size], other={"size": {"is_shape": True}}, formats={"ids": "hwc8"})),
    }
    texts["mistaken"] = texts["batched"].replace("preferred_batch_size: 8", "preferred_batch_size: 99")
    for name, text in texts.items():
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        for file in ("model.plan", "model_89.plan", "model_86.plan"):
            (tmp_path / "models" / name / "1" / file).write_bytes(b"ftrt")
        (tmp_path / "models" / name / "config.pbtxt").write_text(
            with_cpu_instances(text.replace('"tiny"', f'"{name}"'))
        )
    log = tmp_path / "log"
    with TritonServer(tmp_path / "models", installation, log, models=list(texts), exit_on_error=False):
        lines = log.read_text().splitlines()
    for name in texts:
        found = [line for line in lines if f"failed to load '{name}' version 1" in line]
        refusals = [line for line in lines if f"Poll failed for model directory '{name}'" in line]
        assert (len(found), len(refusals)) == ((0, 1) if name == "mistaken" else (1, 0)), lines
        assert all("unable to find backend library for backend 'tensorrt'" in line for line in found)
