"""TensorRT plans from the command line of a machine without a GPU: what a build would be told, and what is refused."""

from __future__ import annotations

import json

import onnx
import pytest
from onnx import TensorProto, helper

from ...support.cli.in_process import InProcess
from ...support.models.graphs import save


@pytest.fixture
def run(run: InProcess) -> InProcess:
    """A folder with product.onnx, a product of matrices with a batch that moves."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", 2))],
        [helper.make_tensor("w", TensorProto.FLOAT, (4, 2), [1.0] * 8)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, run.folder / "product.onnx")
    return run


PLAN = ("compile", "onnx:product.onnx", "--engine", "tensorrt", "--shapes", "x=1x4:8x4:32x4")


def test_call_follows_target_and_spec(run: InProcess) -> None:
    """The call follows the target's TensorRT and the spec."""
    (run.folder / "plan.yaml").write_text(
        "source: onnx:product.onnx\nengine: tensorrt\ntarget: triton-26.07\ntensorrt:\n"
        "  gpus: [A10G]\n  memory_pools: {workspace: 2G}\n  tf32: false\n"
        "  profiles: {latency: {x: 1x4}, throughput: {x: '2x4:16x4:64x4'}}\n"
    )
    answer = run("compile", "plan.yaml", "--dry-run", "--json", "--gpu", "L4")
    assert answer.status == 0, answer.stderr
    build = json.loads(answer.stdout)["build"]
    assert [gpu["name"] for gpu in build["gpus"]] == ["NVIDIA L4"]
    call = build["trtexec"]
    assert "--stronglyTyped" not in call
    assert {"--memPoolSize=workspace:2048M", "--noTF32", "--profile=1", "--maxShapes=x:64x4"} < set(call)
    assert [profile["name"] for profile in build["spec"]["profiles"]] == ["latency", "throughput"]
    latency, throughput = (set(timing) for timing in build["timing"])
    assert {"--loadEngine=model.plan", "--useProfile=0", "--shapes=x:1x4"} < latency
    assert {"--useProfile=1", "--shapes=x:16x4", "--noCudaGraph", "--noSpinWait"} < throughput
    assert not [word for word in latency if word.startswith("--refit")]
    with (run.folder / "plan.yaml").open("a") as spec:
        spec.write("  strip_weights: true\n")
    build = run("compile", "plan.yaml", "--dry-run", "--json", "--gpu", "L4").document["build"]
    weights = f"--refitFromOnnx={build['graph']}"
    assert all({"--refit", weights} < set(timing) for timing in build["timing"])


HELD = "source: onnx:best.onnx\nprecision: fp16\nengine: tensorrt\ntarget: triton-26.07\ntensorrt:\n  gpus: [L4]\n"


@pytest.fixture
def best(run: InProcess) -> InProcess:
    """A folder with best.onnx, whose input k says how many of the largest values it gives."""
    save("best (float[batch, 64] x, int64[1] k) => (float[batch, n] y) { y, places = TopK (x, k) }", run.folder).rename(
        run.folder / "best.onnx"
    )
    return run


@pytest.mark.slow
def test_shape_values_reach_profiles(best: InProcess) -> None:
    """The values of an input that holds a shape stand in the profiles and in the call."""
    (best.folder / "plan.yaml").write_text(f"{HELD}  profiles: {{one: {{x: '1x64:4x64:8x64', k: '9:10:12'}}}}\n")
    before = best("compile", "plan.yaml", "--dry-run", "--json", "--no-check-served").document["build"]
    assert best("lower", "plan.yaml", "--output", "lowered").status == 0
    after = best("compile", "plan.yaml", "--dry-run", "--json", "--no-check-served").document["build"]
    assert (before["is_there"], after["is_there"]) == (False, True)
    for build in (before, after):
        assert {"--minShapes=x:1x64,k:9", "--optShapes=x:4x64,k:10", "--maxShapes=x:8x64,k:12"} < set(build["trtexec"])
        assert "--shapes=x:4x64,k:10" in build["timing"][0]


def test_missing_shape_values_refused(best: InProcess) -> None:
    """An input that holds a shape is refused in the dry run where its values are missing."""
    (best.folder / "plan.yaml").write_text(f"{HELD}  profiles: {{one: {{x: '1x64:4x64:8x64'}}}}\n")
    answer = best("compile", "plan.yaml", "--dry-run", "--no-check-served")
    assert (answer.status, "k holds a shape, and nothing says which values it takes" in answer.stderr) == (2, True)


def test_unknown_output_formats_left_out(run: InProcess) -> None:
    """Formats of outputs that are not known yet are left out of the call, and that is said."""
    (run.folder / "plan.yaml").write_text(
        "source: hf:team/model\nengine: tensorrt\ntarget: triton-26.07\nshapes: {x: 1x4:2x4:4x4}\n"
        "tensorrt: {gpus: [L4], formats: {y: hwc8}}\n"
    )
    build = run("compile", "plan.yaml", "--dry-run", "--json").document["build"]
    assert not [word for word in build["trtexec"] if "hwc8" in word]
    assert "the call lacks the formats of y: the graph tells its outputs" in build["notes"]


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (("--target", "triton-26.03"), 9, "no NVIDIA GPU, and nothing says which one"),
        (("--target", "triton-26.03", "--gpu", "L4"), 9, "a plan for NVIDIA L4 (8.9) is built on one"),
        (("--target", "triton-26.03", "--gpu", "L5"), 2, "'L5' is no GPU that plansmith knows"),
        ((), 6, "local-cpu has no GPU instances"),
        (("--target", "triton-26.03-cpu"), 6, "has no GPU instances"),
        (("--target", "triton-77.03"), 6, "there is no target"),
        (("--target", "triton-26.03", "--precision", "auto"), 6, "precision auto goes by speed"),
        (("--target", "triton-26.03", "--gpu", "T4", "--precision", "bf16"), 6, "BF16 begins with 8.0"),
        (("--target", "triton-26.03", "--gpu", "A10G", "--precision", "fp8"), 6, "FP8 begins with 8.9"),
    ],
)
def test_unbuildable_plan_refused_early(more: tuple[str, ...], status: int, words: str, run: InProcess) -> None:
    """A plan that cannot be built is refused before anything is done."""
    answer = run(*PLAN, *more, "--no-check-served")
    assert answer.status == status
    assert words in answer.stderr
    assert "\nNext: " in answer.stderr
    assert not list(run.folder.glob("artifacts/cache/export/*"))


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        ("  profiles: {one: {z: 1x4}}", 2, "'z'"),
        ("  profiles: {one: {x: 1x5}}", 2, "x"),
        ("  profiles: {one: {x: 1x4x4}}", 2, "rank"),
        ("  formats: {x: hwc8}", 6, "x: the format hwc8 is for 3 dims and more, and it has 2"),
        ("  formats: {x: chw16}", 6, "it is for Jetson's DLA"),
    ],
)
def test_impossible_profiles_refused(lines: str, status: int, words: str, run: InProcess) -> None:
    """Profiles and formats that the graph cannot have are refused."""
    (run.folder / "plan.yaml").write_text(
        f"source: onnx:product.onnx\nengine: tensorrt\ntarget: triton-26.07\ntensorrt:\n  gpus: [L4]\n{lines}\n"
    )
    answer = run("compile", "plan.yaml", "--dry-run", "--no-check-served")
    assert (answer.status, words in answer.stderr) == (status, True), answer.stderr


def test_plan_server_asked_at_once(run: InProcess) -> None:
    """A server for plans is asked for at once."""
    answer = run(*PLAN, "--target", "triton-26.03", "--gpu", "L4")
    assert answer.status == 9
    assert "has no TensorRT backend" in answer.stderr
    assert "--no-check-served" in answer.stderr
