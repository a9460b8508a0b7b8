"""What Triton's TensorRT backend refuses, or serves otherwise than was meant, is found without TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plansmith.config.target.targets import load_target
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
        other={"size": {"is_shape": True}},
    )


def static() -> Engine:
    return engine(inputs=STATIC[0], outputs=STATIC[1], profiles=[])


def lying() -> Engine:
    """A plan whose output does not lie row by row."""
    return engine(other={"scores": {"format": "Channel major FP16 format where channel % 8 == 0"}})


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
    "a dim that the plan fixes": engine(other={"ids": {"dims": (-1, 64)}}),
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
def test_a_mistake_in_our_configuration_is_found_and_no_other(
    of: Engine, changes: dict[str, str], rule: str, written: Written
) -> None:
    manifests = release(written, of, changes=changes)
    assert broken(written.root, manifests=manifests) == {f"tensorrt.{one}" for one in rule.split()}


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


def test_a_plan_without_its_weights_is_found(written: Written) -> None:
    """R18."""
    manifests = release(written, told=engine(strip_weights=True))
    assert broken(written.root, manifests=manifests) == {"tensorrt.stripped"}


def test_without_completion_dims_that_lack_the_batch_are_of_another_rank(written: Written) -> None:
    manifests = release(written, static(), changes={"  dims: 8\n": ""})
    found = broken(written.root, manifests=manifests, arguments=["--disable-auto-complete-config"])
    assert found == {"tensorrt.rank"}


def test_a_plan_for_one_compute_capability_runs_on_others_where_it_was_built_to(written: Written) -> None:
    name = {"default_": 'cc_model_filenames { key: "8.9" value: "model.plan" } default_'}
    for which, level in (("m", "none"), ("n", "ampere_plus")):
        manifests = release(written, engine("A10G", hardware_compatibility=level), changes=name, name=which)
        wanted = {"tensorrt.capability-file"} if level == "none" else set()
        assert {one.rule for one in findings(written.root, manifests=manifests) if one.model == which} == wanted


def test_a_plan_of_another_tensorrt_than_the_targets_is_found(written: Written) -> None:
    """R17."""
    manifests = release(written)
    assert broken(written.root, manifests=manifests, target=OLD) == set()
    (found,) = findings(written.root, manifests=manifests, target=NEW)
    assert (found.rule, found.place) == ("tensorrt.version", "m/1/model.plan")
    assert "10.16.0.72" in found.message
    assert "11.2.1.2" in found.message
    assert "11.2.1.2" in found.remedy


def test_a_version_compatible_plan_loads_in_newer_ones_if_the_server_is_told_to(written: Written) -> None:
    """R19."""
    manifests = release(written, engine(version_compatible=True))
    flag = "--backend-config=tensorrt,version-compatible=true"
    (found,) = findings(written.root, manifests=manifests, target=NEW)
    assert (found.rule, found.severity) == ("tensorrt.server-argument", "warning")
    assert flag in found.remedy
    assert broken(written.root, manifests=manifests, target=NEW, arguments=[flag]) == set()
    assert broken(written.root, manifests=manifests, target=NEW, arguments=flag.split("=", 1)) == set()
    (again,) = findings(written.root, manifests=manifests, target=OLD, sagemaker=True)
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS" in again.remedy
    without = release(written, engine(version_compatible=True, exclude_lean_runtime=True), name="without")
    assert {
        one.model for one in findings(written.root, manifests=manifests | without, target=NEW, arguments=[flag])
    } == {"without"}
    older = load_target("sagemaker-25.04")
    assert "tensorrt.version" in broken(written.root, manifests=manifests, target=older, arguments=[flag])


def test_plugins_that_a_plan_needs_have_to_be_named_to_the_server(written: Written) -> None:
    manifests = release(written, engine(plugins=("/x/liba.so", "libb.so")))
    given = ["--backend-config=tensorrt,plugins=libb.so;libc.so;liba.so"]
    assert broken(written.root, manifests=manifests) == {"tensorrt.server-argument"}
    assert broken(written.root, manifests=manifests, arguments=given) == set()
    elsewhere = ["--backend-config=tensorrt,plugins=/opt/plugins/liba.so;/opt/plugins/libb.so"]
    assert broken(written.root, manifests=manifests, arguments=elsewhere) == set()
    (found,) = findings(written.root, manifests=manifests)
    assert "--server-argument='--backend-config=tensorrt,plugins=liba.so;libb.so'" in found.remedy
    (found,) = findings(written.root, manifests=manifests, target=load_target("sagemaker-26.05"))
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS=--backend-config=tensorrt,plugins=liba.so;libb.so" in found.remedy


def test_plans_that_are_too_old_for_a_targets_gpus_are_found(written: Written) -> None:
    manifests = release(written, engine("A10G"))
    newer = OLD.model_copy(update={"min_compute_capability": "8.9"})
    assert broken(written.root, manifests=manifests, target=newer) == {"tensorrt.compute-capability"}
    both = release(written, engine("A10G", "L4"), name="both")
    assert "both" not in {f.model for f in findings(written.root, manifests=both, target=newer)}


@pytest.mark.parametrize(
    "given", [b"\x08\x0a\x12\x07pytorch" + bytes(30), plan()[:20], plan("7.2.3.4")], ids=["ONNX", "cut off", "old"]
)
def test_a_file_that_is_no_plan_is_found(given: bytes, written: Written) -> None:
    foreign(written, 'platform: "tensorrt_plan"', {"1/model.plan": given})
    (found,) = findings(written.root)
    assert (found.rule, found.place) == ("tensorrt.plan", "m/1/model.plan")
    assert str(written.root) not in found.message


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
def test_of_a_plan_that_somebody_else_made_what_can_be_told_is(config: str, rules: set[str], written: Written) -> None:
    foreign(written, config)
    assert broken(written.root) == {f"tensorrt.{rule}" for rule in rules}


def test_a_plan_of_which_nothing_is_known_may_be_version_compatible_if_the_server_takes_such(written: Written) -> None:
    foreign(written, 'backend: "tensorrt"', {"1/model.plan": plan(BUILT)})
    flag = ["--backend-config=tensorrt,version-compatible=true"]
    assert broken(written.root, target=NEW) == {"tensorrt.version"}
    assert broken(written.root, target=NEW, arguments=flag) == set()
    assert broken(written.root, target=load_target("sagemaker-25.04"), arguments=flag) == {"tensorrt.version"}


def test_a_target_without_gpus_serves_no_plans(written: Written) -> None:
    foreign(written, 'backend: "tensorrt"')
    assert "tensorrt.kind" in broken(written.root, target=load_target("triton-26.03-cpu"))
    assert broken(written.root, target=OLD) == set()
