"""config.pbtxt of TensorRT plans says what Triton's TensorRT backend asks for, and refuses what it cannot serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.config.targets import load_target
from plansmith.config.triton import TritonOptions
from plansmith.config.triton.batching import DynamicBatching
from plansmith.config.triton.options import InstanceGroup
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
from ...support.tensorrt.engines import IDS, TWO_INPUTS, engine, make_plan_tensor, profile, tensor
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


def test_moving_batch_reaches_profile_maximum() -> None:
    """A plan with a moving batch is batched up to the profile's largest."""
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


def test_all_profiles_used_as_batches() -> None:
    """Several profiles are all used and each is a batch to wait for."""
    profiles = [
        profile("latency", ids="1x8:1x64:1x256", mask="1x8:1x64:1x256"),
        profile("throughput", ids="1x8:16x64:64x256", mask="1x8:16x64:64x256"),
        profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32"),
    ]
    config = config_of(engine(profiles=profiles))
    assert config.max_batch_size == 64
    assert list(config.instance_group[0].profile) == ["0", "1", "2"]
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 16]


def test_batch_of_one_is_no_batching() -> None:
    """A batch of one alone is no batching."""
    config = config_of(engine(profiles=[profile(ids="1x8:1x64:1x256", mask="1x8:1x64:1x256")]))
    assert config.max_batch_size == 1
    assert not config.HasField("dynamic_batching")


def full(of: Engine) -> list[list[int]]:
    """The dims of a configuration that must not batch."""
    config = config_of(of)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    return [list(entry.dims) for entry in (*config.input, *config.output)]


def test_fixed_plan_not_batched() -> None:
    """A plan of fixed shapes is not batched and has all its dims."""
    fixed = engine(
        inputs=[tensor("x", (8, 3, 64, 64), "float32")], outputs=[tensor("y", (8, 10), "float32")], profiles=[]
    )
    assert full(fixed) == [[8, 3, 64, 64], [8, 10]]


def test_batchless_first_dim_not_batched() -> None:
    """A first dim that is no batch is not batched."""
    turned = [tensor("ids", ("sequence", "batch")), tensor("mask", ("sequence", "batch"))]
    assert full(engine(inputs=turned)) == [[-1, -1], [-1, -1], [-1, 3]]
    assert full(engine(outputs=[tensor("scores", (1, 3), "float32")])) == [[-1, -1], [-1, -1], [1, 3]]


def test_fixed_batch_not_batched() -> None:
    """A batch that the plan itself fixed is not batched."""
    assert full(engine(changes={"ids": {"dims": (8, -1)}})) == [[8, -1], [-1, -1], [-1, 3]]


@pytest.mark.parametrize(
    "odd",
    [
        profile(ids="1x8:8x64:32x256", mask="1x8:8x64:16x256"),
        profile(ids="2x8:8x64:32x256", mask="2x8:8x64:32x256"),
        profile(ids="1x8:8x64:32x256"),
    ],
    ids=["two largest batches", "no single sample", "an input that it does not name"],
)
def test_partial_batch_profile_not_batched(odd: OptimizationProfile) -> None:
    """A profile that does not take every batch is not batched."""
    assert full(engine(profiles=[odd])) == [[-1, -1], [-1, -1], [-1, 3]]


def test_batches_between_profiles_not_made() -> None:
    """Batches between two profiles are not made."""
    few = profile("latency", ids="1x8:1x64:2x256", mask="1x8:1x64:2x256")
    beside, beyond = (
        profile("throughput", ids=f"{low}x8:16x64:16x256", mask=f"{low}x8:16x64:16x256") for low in (3, 4)
    )
    assert config_of(engine(profiles=[beside, few])).max_batch_size == 16
    assert full(engine(profiles=[few, beyond])) == [[-1, -1], [-1, -1], [-1, 3]]


def test_single_sample_needs_all_inputs() -> None:
    """A single sample is taken where every input takes one."""
    assert full(engine(profiles=[profile(ids="1x8:8x64:32x256", mask="2x8:8x64:32x256")])) == [
        [-1, -1],
        [-1, -1],
        [-1, 3],
    ]


def test_fixed_dims_from_graph_or_plan() -> None:
    """Dims that the graph names and the plan fixes are the plan's, and the other way round."""
    plan_engine = engine(changes={"ids": {"dims": (-1, 64)}, "scores": {"dims": (-1, -1)}})
    assert [list(entry.dims) for entry in (*config_of(plan_engine).input, *config_of(plan_engine).output)] == [
        [64],
        [-1],
        [3],
    ]


def test_single_value_has_wire_dim() -> None:
    """One value per sample has a dim on the wire."""
    config = config_of(engine(outputs=[tensor("score", ("batch",), "float32")]))
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape")
    assert not config.output[0].reshape.shape


def test_shape_tensor_marked_unbatched() -> None:
    """A shape tensor is marked and its plan is not batched."""
    size = tensor("size", (2,))
    values = {"size": InputRange(min=(8, 8), opt=(64, 64), max=(256, 256))}
    by_plan = engine(
        inputs=[IDS, size], profiles=[profile(ids="1x8:8x64:32x256")], changes={"size": {"is_shape": True}}
    )
    by_profile = engine(inputs=[IDS, size], profiles=[profile(ids="1x8:8x64:32x256", values=values)])
    for plan_engine in (by_plan, by_profile):
        config = config_of(plan_engine)
        assert [entry.is_shape_tensor for entry in (*config.input, *config.output)] == [False, True, False]
        assert full(plan_engine) == [[-1, -1], [2], [-1, 3]]


@pytest.mark.parametrize(
    "layout", ["Channel major FP16 format where channel % 8 == 0", "Row major Int8 format", "HWC8"]
)
def test_non_linear_layout_marked(layout: str) -> None:
    """A layout that is not linear is marked."""
    config = config_of(engine(changes={"scores": {"format": layout}}))
    assert [entry.is_non_linear_format_io for entry in (*config.input, *config.output)] == [False, False, True]


def test_requested_layout_marked_if_untold() -> None:
    """A layout that was asked for is marked where the plan tells none."""
    plan_engine = engine(
        changes={"scores": {"format": ""}, "ids": {"format": ""}}, formats={"scores": "chw32", "ids": "chw"}
    )
    assert [e.is_non_linear_format_io for e in (*config_of(plan_engine).input, *config_of(plan_engine).output)] == [
        False,
        False,
        True,
    ]
    plain = config_of(engine(changes={"ids": {"format": "LINEAR"}}))
    assert not plain.input[0].is_non_linear_format_io


def test_plans_chosen_by_compute_capability() -> None:
    """Plans for several GPUs are chosen by their compute capability."""
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


def test_triton_view_of_plans_compared() -> None:
    """What Triton made of the configuration of several plans is compared."""
    ours, theirs = (config_of(engine("L4", "A10G")) for _ in range(2))
    assert contradictions(ours, theirs) == []
    assert completions(ours, theirs) == {}
    theirs.parameters["x"].string_value = "y"
    assert completions(ours, theirs) == {"parameters": {"x": 'string_value: "y"\n'}}
    theirs.cc_model_filenames["8.6"] = "model.plan"
    (difference,) = contradictions(ours, theirs)
    assert difference.startswith("cc_model_filenames: wrote {")
    assert "'8.6': 'model_86.plan'" in difference
    assert "'8.6': 'model.plan'" in difference.partition("Triton has")[2]
    theirs = config_of(engine("L4", "A10G"))
    theirs.instance_group[0].profile.append("1")
    assert completions(ours, theirs) == {"instance_group[0].profile": ["1"]}


def test_server_options_in_package() -> None:
    """What the server has to be started with is in the package."""
    assert plan_package("tiny", engine()).server_arguments == ()
    assert plan_package("tiny", engine(version_compatible=True)).server_arguments == (
        "--backend-config=tensorrt,version-compatible=true",
    )
    both = plan_package("tiny", engine(version_compatible=True, plugins=("/x/liba.so", "y/libb.so")))
    assert both.server_arguments[1] == "--backend-config=tensorrt,plugins=liba.so;libb.so"


DELAYED = TritonOptions(
    dynamic_batching=DynamicBatching(max_queue_delay_microseconds=700), instance_group=(InstanceGroup(count=3),)
)


def test_spec_options_reach_plan_configuration() -> None:
    """The options of a spec reach the configuration of a plan."""
    config = parse_config(written(engine(), options=DELAYED))
    assert config.dynamic_batching.max_queue_delay_microseconds == 700
    assert config.instance_group[0].count == 3
    assert list(config.dynamic_batching.preferred_batch_size) == [8]


def test_spec_chooses_profiles_and_batches() -> None:
    """A spec chooses the profiles of a group of instances and the preferred batches."""
    several = engine(profiles=[TWO_INPUTS, profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32")])
    settings = {"instance_group": [{"profile": [1]}, {}], "dynamic_batching": {"preferred_batch_size": [2, 16]}}
    config = parse_config(written(several, options=TritonOptions.model_validate(settings)))
    assert [list(group.profile) for group in config.instance_group] == [["1"], ["0", "1"]]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 16]


FEW = profile("few", ids="1x8:1x64:2x256", mask="1x8:1x64:2x256")
LONG = profile("long", ids="1x8:8x512:16x512", mask="1x8:8x512:16x512")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], {(1, 8), (2, 256), (3, 8), (16, 512)}),
        ([{"profile": [0]}], {(1, 8), (2, 256)}),
        ([{"profile": [1]}], {(1, 8), (3, 8), (16, 512), (2, 256)}),
        ([{"profile": [1]}, {"profile": [0]}], {(1, 8), (2, 256)}),
    ],
)
def test_requests_fit_profile_of_each_instance(groups: list[Any], expected: set[Any]) -> None:
    """What may reach any instance has to fit a profile of each."""
    profiles = [FEW, LONG]
    options = TritonOptions.model_validate({"instance_group": groups})
    config = parse_config(written(engine(profiles=profiles), options=options))
    feeds = {
        shape: {"ids": np.zeros(shape), "mask": np.zeros(shape)} for shape in [(1, 8), (2, 256), (3, 8), (16, 512)]
    }
    assert {shape for shape, feed in feeds.items() if instances_take(config, profiles, feed)} == expected
    assert not instances_take(config, profiles, {"ids": np.zeros((17, 8)), "mask": np.zeros((17, 8))})
    assert instances_take(config, [], feeds[1, 8])


def test_instances_reach_own_profiles() -> None:
    """Instances reach as far as their own profiles."""
    apart = profile("apart", ids="3x8:8x64:32x256", mask="3x8:8x64:32x256")
    several = engine(profiles=[FEW, LONG, apart])
    reaches = {numbers: largest_batch(several, numbers) for numbers in [(0,), (1,), (0, 1), (0, 2), (2,)]}
    assert reaches == {(0,): 2, (1,): 16, (0, 1): 16, (0, 2): 32, (2,): 0}


def test_cpu_instances_are_refused() -> None:
    assert "they are for CPU instances" in refused(engine(), device="cpu")


def test_plan_without_weights_refused() -> None:
    """A plan without its weights is refused until they are put back."""
    assert "the plan for NVIDIA L4 is without its weights" in refused(engine(strip_weights=True))
    assert config_of(engine(strip_weights=True, plan={"refitted": True})).max_batch_size == 32


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "another dtype": ({"ids": {"dtype": "int32"}}, "ids is int32, and int64 in the graph"),
    "another rank": ({"ids": {"dims": (-1, 8, 8)}}, "ids has dims [-1, 8, 8], and ['batch', 'sequence'] in the graph"),
    "another size": ({"scores": {"dims": (-1, 4)}}, "scores has dims [-1, 4], and ['batch', 3] in the graph"),
    "another name": ({"mask": {"name": "mask.1"}}, "its graph has no mask.1"),
    "another direction": ({"scores": {"is_input": True}}, "scores is an input of the plan alone"),
}


@pytest.mark.parametrize(("changes", "said"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_plan_with_other_interface_refused(changes: dict[str, Any], said: str) -> None:
    """A plan with other inputs or outputs than its graph is refused."""
    assert said in refused(engine(changes=changes))


def test_all_plan_problems_told_together() -> None:
    """Every problem of every plan is told at once."""
    message = refused(engine("L4", "A10G", changes={"ids": {"dtype": "int32"}}, strip_weights=True), device="cpu")
    assert len(message.splitlines()) == 6


def test_facts_untold_by_trtexec_from_graph() -> None:
    """What trtexec does not tell of is the graph's."""
    part = {"builder": "trtexec", "tensors": (make_plan_tensor(IDS, {"dtype": "", "format": ""}, is_input=True),)}
    config = config_of(engine(plan=part))
    assert (config.max_batch_size, list(config.input[1].dims)) == (32, [-1])
    assert config_of(engine(plan={"builder": "trtexec", "tensors": ()})).max_batch_size == 32
    assert "mask is not among its inputs and outputs" in refused(engine(plan=part | {"builder": "api"}))


def test_backend_unsupported_refused() -> None:
    """What the backend cannot carry is refused."""
    odd = tensor("x", ("batch", 3), "float64")
    shapes = [profile(x="1x3:8x3:32x3")]
    assert "x has dtype float64" in refused(engine(inputs=[odd], profiles=shapes))
    scalar = engine(inputs=[tensor("x", (4,), "float32")], outputs=[tensor("y", (), "float32")], profiles=[])
    assert "y has no dims at all" in refused(scalar)


def test_plans_named_by_configuration(tmp_path: Path) -> None:
    """A release has each plan under the name that its configuration says."""
    several = engine("L4", "A10G")
    for capability, plan in several.plans.items():
        (tmp_path / "engine" / capability).mkdir(parents=True)
        (tmp_path / "engine" / plan.file).write_bytes(plan_bytes("10.16.0.72") + capability.encode())
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=Listener(), force=False, dry=False)
    compiled = StepResult(several, tmp_path / "engine", "a digest", cached=False)
    model = made_model(engine=compiled, onnx=exported(several, tmp_path))
    package = build_package(stages, "tiny", load_target("triton-26.03"), TritonOptions(), model)
    assert package is not None
    assert package.record == plan_package("tiny", several)
    config = parse_config((package.folder / "config.pbtxt").read_text())
    placed = {
        capability: (package.folder / "model" / file).read_bytes()[-3:]
        for capability, file in config.cc_model_filenames.items()
    }
    assert placed == {"8.9": b"8.9", "8.6": b"8.6"}
    with pytest.raises(EngineError, match="CPU instances"):
        build_package(stages, "tiny", load_target("triton-26.03-cpu"), TritonOptions(), model)
    stages.close()


def test_release_beyond_instances_refused(tmp_path: Path) -> None:
    """A release whose instances do not take its largest batch is refused."""
    of = engine(profiles=[FEW, LONG])
    options = TritonOptions.model_validate({"instance_group": [{}, {"profile": [0]}]})
    model = made_model(engine=StepResult(of, tmp_path, "a digest", cached=False), onnx=exported(of, tmp_path))
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=Listener(), force=False, dry=False)
    with pytest.raises(UsageError, match=r"instance_group\.1\.profile: these take batches up to 2"):
        build_package(stages, "tiny", load_target("triton-26.03"), options, model)
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
def test_triton_accepts_configuration_without_backend(installation: Installation, tmp_path: Path) -> None:
    """Its core reads and checks a configuration before it looks for the backend; one with a mistake shows that."""
    if installation.real_tensorrt:
        pytest.skip("this Triton has the backend, which wants a real plan")
    size = tensor("size", (2,))
    several = [TWO_INPUTS, profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32")]
    texts = {
        "batched": written(engine("L4", "A10G", profiles=several)),
        "shapes": written(engine(inputs=[IDS, size], changes={"size": {"is_shape": True}}, formats={"ids": "hwc8"})),
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
        failures = [line for line in lines if f"failed to load '{name}' version 1" in line]
        refusals = [line for line in lines if f"Poll failed for model directory '{name}'" in line]
        assert (len(failures), len(refusals)) == ((0, 1) if name == "mistaken" else (1, 0)), lines
        assert all("unable to find backend library for backend 'tensorrt'" in line for line in failures)
