"""What Triton's TensorRT backend refuses, or serves otherwise than was meant, is found without TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plansmith.config.targets import load_target
from plansmith.records.model import InputRange

from ....support.checker.backend_rules import broken, findings
from ....support.checker.plans import BUILT, foreign, release
from ....support.tensorrt.engines import IDS, SCORES, TWO_INPUTS, engine, profile, tensor
from ....support.tensorrt.plan_files import plan

if TYPE_CHECKING:
    from plansmith.records.engine import Engine

    from ....support.checker.written import Written

OLD, NEW = load_target("triton-26.03"), load_target("triton-26.08")
SIZE = tensor("size", (2,))
STATIC = [tensor("x", (8, 3), "float32")], [tensor("y", (8, 10), "float32")]


def shaped() -> Engine:
    """A plan with an input that holds a shape."""
    values = {"size": InputRange(min=(8, 8), opt=(64, 64), max=(256, 256))}
    return engine(
        inputs=[IDS, SIZE],
        profiles=[profile(ids="1x8:8x64:32x256", values=values)],
        changes={"size": {"is_shape": True}},
    )


def static() -> Engine:
    return engine(inputs=STATIC[0], outputs=STATIC[1], profiles=[])


def lying() -> Engine:
    """A plan whose output does not lie row by row."""
    return engine(changes={"scores": {"format": "Channel major FP16 format where channel % 8 == 0"}})


def strategy(value: str) -> str:
    return f'parameters {{ key: "execution_context_allocation_strategy" value {{ string_value: "{value}" }} }}'


SEVERAL = [TWO_INPUTS, profile("short", ids="1x8:4x16:64x32", mask="1x8:4x16:64x32")]

OURS = {
    "two inputs": engine(),
    "several profiles": engine(profiles=SEVERAL),
    "several GPUs": engine("L4", "A10G"),
    "a shape tensor": shaped(),
    "fixed shapes": static(),
    "another layout": lying(),
    "a layout that was asked for": engine(formats={"ids": "chw32"}),
    "one value a sample": engine(outputs=[tensor("score", ("batch",), "float32")]),
    "no batch": engine(inputs=[tensor("ids", ("sequence", "batch")), tensor("mask", ("sequence", "batch"))]),
    "a dim that the plan fixes": engine(changes={"ids": {"dims": (-1, 64)}}),
    "weights that were put back": engine(strip_weights=True, plan={"refitted": True}),
    "ampere_plus": engine("A10G", hardware_compatibility="ampere_plus"),
}


@pytest.mark.parametrize("of", OURS.values(), ids=OURS.keys())
def test_what_plansmith_made_is_passed(of: Engine, written: Written) -> None:
    manifests = release(written, of)
    assert findings(written.root, target=OLD, manifests=manifests) == []
    assert findings(written.root, manifests=manifests) == []


GRAPHS = {"version_policy": "optimization { cuda { graphs: true } }\nversion_policy"}
SPEC = {"version_policy": "optimization { cuda { graph_spec { batch_size: 1 } } }\nversion_policy"}
IDS_64 = 'name: "ids"\n  data_type: TYPE_INT64\n  dims: '
BATCHED = {"  dims: 8\n": "", "default_": "max_batch_size: 8 default_"}
WRITTEN_INPUT = 'input {\n  name: "x"\n  data_type: TYPE_FP32\n  dims: 8\n  dims: 3\n}'
MARKED = {"  dims: 3\n": "  dims: 3\n  is_shape_tensor: true\n"}
NOT_LINEAR = {"  dims: 3\n": "  dims: 3\n  is_non_linear_format_io: true\n"}
PAIR = engine("L4", "A10G")

MISTAKES: dict[str, tuple[Engine, dict[str, str], str]] = {
    "CPU instances (R9)": (engine(), {"KIND_GPU": "KIND_CPU"}, "kind"),
    "KIND_MODEL without devices (R9)": (engine(), {"KIND_GPU": "KIND_MODEL"}, "kind"),
    "a larger batch than the profiles take (R6)": (engine(), {"size: 32": "size: 64"}, "max-batch-size"),
    "a batch that the plan fixes (R6)": (
        static(),
        {"  dims: 8\n": "", "default_": "max_batch_size: 8 default_"},
        "fixed-batch",
    ),
    "dims without the batch, and no batch size (R7)": (static(), {"  dims: 8\n": ""}, "batch-hint"),
    "dims with the batch and without (R7)": (static(), {"  dims: 8\n  dims: 10\n": "  dims: 10\n"}, "contradiction"),
    "another rank (R7)": (engine(), {"  dims: 3\n": "  dims: 3\n  dims: 1\n"}, "rank"),
    "a rank with the batch, where Triton adds it (R7)": (engine(), {"  dims: 3\n": "  dims: -1\n  dims: 3\n"}, "rank"),
    "another size": (engine(), {"  dims: 3\n": "  dims: 4\n"}, "dims"),
    "a free dim that the plan fixes": (engine(), {"  dims: 3\n": "  dims: -1\n"}, "dims"),
    "a size beyond the profile": (engine(), {f"{IDS_64}-1": f"{IDS_64}512"}, "profile-dims"),
    "INT32, as TensorRT 8 made of INT64 (R4)": (engine(), {"TYPE_INT64": "TYPE_INT32"}, "plan-dtype"),
    "a dtype that no plan carries": (engine(), {"TYPE_FP32": "TYPE_FP64"}, "dtype plan-dtype"),
    "a profile that is not there (R10)": (engine(profiles=SEVERAL), {'profile: "1"': 'profile: "2"'}, "profile-index"),
    "another name (R23)": (engine(), {'"scores"': '"logits"'}, "tensor-name"),
    "an input of another name (R23)": (engine(), {'"mask"': '"attention"'}, "tensor-name missing-input"),
    "a shape tensor that is not marked (R12)": (shaped(), {"  is_shape_tensor: true\n": ""}, "is-shape-tensor"),
    "a shape tensor that is none (R12)": (engine(), MARKED, "is-shape-tensor shape-tensor"),
    "a shape tensor of another size (R12)": (shaped(), {"  dims: 2\n": "  dims: 3\n"}, "dims"),
    "a strategy that is none": (engine(), {"default_": f"{strategy('LAZY')} default_"}, "parameter"),
    "a layout that is not marked": (lying(), {"  is_non_linear_format_io: true\n": ""}, "non-linear-format"),
    "a layout that is marked and linear": (engine(), NOT_LINEAR, "non-linear-format"),
    "several instances of a plan that varies": (engine(), {"count: 1": "count: 2"}, "instances"),
    "CUDA graphs for shapes that vary": (engine(), GRAPHS, "cuda-graphs"),
    "CUDA graphs with a shape tensor": (shaped(), GRAPHS, "cuda-graphs"),
    "graph_spec without graphs": (engine(), SPEC, "cuda-graphs"),
    "a plan that is named for another GPU (R16)": (PAIR, {'"model_86.plan"': '"model_89.plan"'}, "capability-file"),
    "a plan that is not there (R16)": (PAIR, {'"model_86.plan"': '"model_80.plan"'}, "capability-file"),
    "a key that is no compute capability (R16)": (PAIR, {'"8.6"': '"sm86"'}, "capability-key capability-file"),
    "no plan for other GPUs": (PAIR, {'filename: "model_89.plan"': 'filename: "model.plan"'}, "other-gpus"),
}


@pytest.mark.parametrize(("of", "changes", "rule"), MISTAKES.values(), ids=MISTAKES.keys())
def test_own_configuration_mistake_found_alone(
    of: Engine, changes: dict[str, str], rule: str, written: Written
) -> None:
    """A mistake in our configuration is found, and no other."""
    manifests = release(written, of, changes=changes)
    assert broken(written.root, manifests=manifests) == {f"tensorrt.{name}" for name in rule.split()}


SOUND: dict[str, tuple[Engine, dict[str, str]]] = {
    "a smaller batch than the profiles take": (engine(), {"size: 32": "size: 16"}),
    "a size within the profile": (engine(), {f"{IDS_64}-1": f"{IDS_64}64"}),
    "several devices": (
        engine(),
        {
            "kind: KIND_GPU": "kind: KIND_MODEL",
            "version_policy": 'parameters { key: "enable_multi_device" value { string_value: "true" } } version_policy',
        },
    ),
    "outputs that are not all served": (engine(outputs=[SCORES, tensor("more", ("batch", 2), "float32")]), {}),
    "a strategy": (engine(), {"default_": f"{strategy('ON_PROFILE_CHANGE')} default_"}),
    "an input that Triton makes of sequences": (
        engine(),
        {
            'input {\n  name: "mask"\n  data_type: TYPE_INT64\n  dims: -1\n}': "",
            "dynamic_batching {": 'sequence_batching { control_input { name: "mask" } }\ndynamic_batching {',
        },
    ),
    "a ragged input": (engine(), {f"{IDS_64}-1": f"{IDS_64}-1\n  dims: -1\n  allow_ragged_batch: true"}),
    "CUDA graphs for fixed shapes": (static(), GRAPHS),
    "CUDA graphs for exact shapes": (
        engine(),
        {
            "version_policy": 'optimization { cuda { graphs: true graph_spec { batch_size: 1 input { key: "ids"'
            ' value { dim: [ 64 ] } } input { key: "mask" value { dim: [ 64 ] } } } } }\nversion_policy'
        },
    ),
    "several instances of fixed shapes": (static(), {"count: 1": "count: 4"}),
    "no inputs, which Triton completes": (
        static(),
        {'input {\n  name: "x"\n  data_type: TYPE_FP32\n  dims: 8\n  dims: 3\n}': ""},
    ),
}


@pytest.mark.parametrize(("of", "changes"), SOUND.values(), ids=SOUND.keys())
def test_what_loads_is_passed(of: Engine, changes: dict[str, str], written: Written) -> None:
    manifests = release(written, of, changes=changes)
    assert broken(written.root, manifests=manifests) == set()


def test_plan_without_weights_found(written: Written) -> None:
    """R18."""
    manifests = release(written, told=engine(strip_weights=True))
    assert broken(written.root, manifests=manifests) == {"tensorrt.stripped"}


def test_batchless_dims_have_other_rank(written: Written) -> None:
    """Without completion, dims that lack the batch are of another rank."""
    manifests = release(written, static(), changes={"  dims: 8\n": ""})
    rules = broken(written.root, manifests=manifests, arguments=["--disable-auto-complete-config"])
    assert rules == {"tensorrt.rank"}


def test_capability_plan_runs_where_built(written: Written) -> None:
    """A plan for one compute capability runs on others where it was built to."""
    name = {"default_": 'cc_model_filenames { key: "8.9" value: "model.plan" } default_'}
    for which, level in (("m", "none"), ("n", "ampere_plus")):
        manifests = release(written, engine("A10G", hardware_compatibility=level), changes=name, name=which)
        expected = {"tensorrt.capability-file"} if level == "none" else set()
        assert {
            finding.rule for finding in findings(written.root, manifests=manifests) if finding.model == which
        } == expected


def test_other_tensorrt_plan_found(written: Written) -> None:
    """R17."""
    manifests = release(written)
    assert broken(written.root, manifests=manifests, target=OLD) == set()
    (finding,) = findings(written.root, manifests=manifests, target=NEW)
    assert (finding.rule, finding.place) == ("tensorrt.version", "m/1/model.plan")
    assert "10.16.0.72" in finding.message
    assert "11.2.1.2" in finding.message
    assert "11.2.1.2" in finding.remedy


def test_compatible_plan_loads_in_newer(written: Written) -> None:
    """R19."""
    manifests = release(written, engine(version_compatible=True))
    flag = "--backend-config=tensorrt,version-compatible=true"
    (finding,) = findings(written.root, manifests=manifests, target=NEW)
    assert (finding.rule, finding.severity) == ("tensorrt.server-argument", "warning")
    assert flag in finding.remedy
    assert broken(written.root, manifests=manifests, target=NEW, arguments=[flag]) == set()
    assert broken(written.root, manifests=manifests, target=NEW, arguments=flag.split("=", 1)) == set()
    (again,) = findings(written.root, manifests=manifests, target=OLD, sagemaker=True)
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS" in again.remedy
    without = release(written, engine(version_compatible=True, exclude_lean_runtime=True), name="without")
    assert {
        item.model for item in findings(written.root, manifests=manifests | without, target=NEW, arguments=[flag])
    } == {"without"}
    older = load_target("sagemaker-25.04")
    assert "tensorrt.version" in broken(written.root, manifests=manifests, target=older, arguments=[flag])


def test_needed_plugins_named_to_server(written: Written) -> None:
    """Plugins that a plan needs have to be named to the server."""
    manifests = release(written, engine(plugins=("/x/liba.so", "libb.so")))
    options = ["--backend-config=tensorrt,plugins=libb.so;libc.so;liba.so"]
    assert broken(written.root, manifests=manifests) == {"tensorrt.server-argument"}
    assert broken(written.root, manifests=manifests, arguments=options) == set()
    elsewhere = ["--backend-config=tensorrt,plugins=/opt/plugins/liba.so;/opt/plugins/libb.so"]
    assert broken(written.root, manifests=manifests, arguments=elsewhere) == set()
    (finding,) = findings(written.root, manifests=manifests)
    assert "--server-argument='--backend-config=tensorrt,plugins=liba.so;libb.so'" in finding.remedy
    (finding,) = findings(written.root, manifests=manifests, target=load_target("sagemaker-26.05"))
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS=--backend-config=tensorrt,plugins=liba.so;libb.so" in finding.remedy


def test_plans_too_old_for_gpus_found(written: Written) -> None:
    """Plans that are too old for a target's GPUs are found."""
    manifests = release(written, engine("A10G"))
    newer = OLD.model_copy(update={"min_compute_capability": "8.9"})
    assert broken(written.root, manifests=manifests, target=newer) == {"tensorrt.compute-capability"}
    both = release(written, engine("A10G", "L4"), name="both")
    assert "both" not in {f.model for f in findings(written.root, manifests=both, target=newer)}


@pytest.mark.parametrize(
    "content", [b"\x08\x0a\x12\x07pytorch" + bytes(30), plan()[:20], plan("7.2.3.4")], ids=["ONNX", "cut off", "old"]
)
def test_non_plan_file_found(content: bytes, written: Written) -> None:
    """A file that is no plan is found."""
    foreign(written, 'platform: "tensorrt_plan"', {"1/model.plan": content})
    (finding,) = findings(written.root)
    assert (finding.rule, finding.place) == ("tensorrt.plan", "m/1/model.plan")
    assert str(written.root) not in finding.message


FOREIGN = {
    "nothing but its platform": ('platform: "tensorrt_plan"', set()),
    "nothing but its backend": ('backend: "tensorrt"', set()),
    "CPU instances": ('backend: "tensorrt" instance_group { kind: KIND_CPU }', {"kind"}),
    "an output that holds a shape in INT32": (
        'backend: "tensorrt" output { name: "y" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }',
        {"shape-tensor"},
    ),
    "an input that holds a shape in INT32": (
        'backend: "tensorrt" input { name: "x" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }',
        set(),
    ),
    "a shape tensor of two dims": (
        'backend: "tensorrt" input { name: "x" data_type: TYPE_INT64 dims: [ 2, 2 ] is_shape_tensor: true }',
        {"shape-tensor"},
    ),
    "strings": ('backend: "tensorrt" input { name: "x" data_type: TYPE_STRING dims: [ 2 ] }', {"dtype"}),
    "a plan for each GPU, of which one is missing": (
        'backend: "tensorrt" cc_model_filenames { key: "8.9" value: "gone.plan" }',
        {"capability-file"},
    ),
    "CUDA graphs for shapes that vary": (
        'backend: "tensorrt" input { name: "x" data_type: TYPE_FP32 dims: -1 } optimization { cuda { graphs: true } }',
        {"cuda-graphs"},
    ),
}


@pytest.mark.parametrize(("config", "rules"), FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_plan_told_as_known(config: str, rules: set[str], written: Written) -> None:
    """Of a plan that somebody else made, what can be told is told."""
    foreign(written, config)
    assert broken(written.root) == {f"tensorrt.{rule}" for rule in rules}


def test_unknown_plan_may_be_compatible(written: Written) -> None:
    """A plan of which nothing is known may be version-compatible if the server takes such."""
    foreign(written, 'backend: "tensorrt"', {"1/model.plan": plan(BUILT)})
    flag = ["--backend-config=tensorrt,version-compatible=true"]
    assert broken(written.root, target=NEW) == {"tensorrt.version"}
    assert broken(written.root, target=NEW, arguments=flag) == set()
    assert broken(written.root, target=load_target("sagemaker-25.04"), arguments=flag) == {"tensorrt.version"}


def test_gpuless_target_serves_no_plans(written: Written) -> None:
    """A target without GPUs serves no plans."""
    foreign(written, 'backend: "tensorrt"')
    assert "tensorrt.kind" in broken(written.root, target=load_target("triton-26.03-cpu"))
    assert broken(written.root, target=OLD) == set()
