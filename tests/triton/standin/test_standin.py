"""The stand-in refuses what Triton's ONNX Runtime backend refuses, and answers as ONNX Runtime does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from plansmith.triton.server.process import refused_models
from plansmith.triton.server.server import TritonServer

from ...support.waiting import soon

# Their fixture is costly.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stand-in")]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from plansmith.triton.server.installation import Installation

    Graph = Callable[[int | str], onnx.ModelProto]


class Broken(NamedTuple):
    """One change to a configuration that fits, and the words of the refusal."""

    old: str
    new: str
    fragments: tuple[str, ...]
    batch: int | str = "n"


A = '{ name: "a" data_type: TYPE_FP32 dims: [ 3 ] }'
IDS = '{ name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }'
HALF = '{ name: "half" data_type: TYPE_FP32 dims: [ 3 ] }'
TWICE = '{ name: "twice" data_type: TYPE_INT64 dims: [ -1 ] }'
THREADS = 'intra_op_thread_count" value { string_value: "1" }'
END = THREADS + " }\n"


def accelerated(device: str, accelerator: str) -> str:
    return f"{END}optimization {{ execution_accelerators {{ {device}_execution_accelerator {{ {accelerator} }} }} }}\n"


def with_parameter(key: str, value: str) -> str:
    return f'{END}parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


BROKEN = {
    "input_type": Broken(IDS, IDS.replace("INT64", "INT32"), ("'ids'", "TYPE_INT32", "model provides TYPE_INT64")),
    "output_type": Broken(TWICE, TWICE.replace("INT64", "FP32"), ("'twice'", "TYPE_FP32", "provides TYPE_INT64")),
    "unknown_type": Broken(A, A.replace("FP32", "BF16"), ("unsupported datatype TYPE_BF16", "'a'")),
    "more_dims": Broken(A, A.replace("3 ]", "3, 1 ]"), ("'a'", "expects 2 dimensions", "specifies 3", "[-1,3,1]")),
    "fewer_dims": Broken("batch_size: 8", "batch_size: 0", ("'a'", "expects 2 dimensions", "specifies 1", "[3]")),
    "other_size": Broken(A, A.replace("3 ]", "4 ]"), ("'a'", "[-1,3]", "[-1,4]")),
    "free_for_fixed": Broken(A, A.replace("3 ]", "-1 ]"), ("'a'", "[-1,3]", "[-1,-1]")),
    "fixed_output": Broken(TWICE, TWICE.replace("-1", "5"), ("'twice'", "[-1,-1]", "[-1,5]")),
    "zero_size": Broken(A, A.replace("3 ]", "0 ]"), ("dimension", "-1")),
    "no_dims": Broken(A, A.replace("3 ]", "]"), ("must specify 'dims'",)),
    "fixed_batch": Broken("", "", ("'a'", "batching", "first dimension", "-1", "[1,3]"), batch=1),
    "fixed_batch_free_config": Broken("batch_size: 8", "batch_size: 0", ("'a'", "[4,3]", "[3]"), batch=4),
    "unknown_input": Broken('"a"', '"b"', ("unexpected inference input 'b'", "a, ids")),
    "missing_input": Broken(f", {IDS}", "", ("expects 1 inputs", "provides 2", "ids")),
    "surplus_input": Broken(IDS, f"{IDS}, {IDS.replace('ids', 'mask')}", ("expects 3 inputs", "provides 2")),
    "unknown_output": Broken('"twice"', '"thrice"', ("unexpected inference output 'thrice'", "half, twice")),
    "optional_in_batch": Broken(IDS, f"{IDS}, {A.replace('{', '{ optional: true')}".replace('"a"', '"c"'), ("'c'",)),
    "accelerator_gpu": Broken(END, accelerated("gpu", 'name: "tensorrtx"'), ("unknown Execution", "'tensorrtx'")),
    "accelerator_cpu": Broken(END, accelerated("cpu", 'name: "mkl"'), ("unknown Execution Accelerator 'mkl'",)),
    "accelerator_openvino": Broken(END, accelerated("cpu", 'name: "openvino"'), ("does not serve", "OpenVINO")),
    "tensorrt_key": Broken(
        END,
        accelerated("gpu", 'name: "tensorrt" parameters { key: "trt_fp16" value: "1" }'),
        ("unknown parameter 'trt_fp16'", "TensorRT"),
    ),
    "tensorrt_precision": Broken(
        END,
        accelerated("gpu", 'name: "tensorrt" parameters { key: "precision_mode" value: "FP8" }'),
        ("unsupported precision mode 'FP8'",),
    ),
    "tensorrt_size": Broken(
        END,
        accelerated("gpu", 'name: "tensorrt" parameters { key: "max_workspace_size_bytes" value: "big" }'),
        ("failed to convert 'big'", "integral number"),
    ),
    "threads": Broken(THREADS, THREADS.replace('"1"', '"many"'), ("failed to convert 'many'", "integral number")),
    "mode": Broken(END, with_parameter("execution_mode", "2"), ("execution_mode", "2", "0 and 1")),
    "arena": Broken(END, with_parameter("enable_mem_arena", "perhaps"), ("failed to convert 'perhaps'", "boolean")),
    "gpu": Broken("KIND_CPU", "KIND_GPU", ("KIND_GPU",)),
    "preferred": Broken(END, END + "dynamic_batching { preferred_batch_size: [ 16 ] }\n", ("preferred", "max batch")),
    "typing_error": Broken("max_batch_size: 8", "max_batch_sise: 8", ("failed to read text proto",)),
    "sequence": Broken(END, END + "sequence_batching { }\n", ("stand-in", "does not serve sequence batching")),
    "text": Broken(A, A.replace("FP32", "STRING"), ("stand-in", "does not serve string tensors")),
    "ragged": Broken(A, A.replace("dims", "allow_ragged_batch: true dims"), ("does not serve ragged batches",)),
    "no_outputs": Broken(f"output [ {HALF}, {TWICE} ]", "", ("without inputs or outputs",)),
    "no_file": Broken("", "", ("unable to find", "model.onnx")),
    "no_onnx": Broken("", "", ("model.onnx", "failed")),
}
GOOD = {
    "good": ("", "", "n"),
    "good_cached": (END, END + "response_cache { enable: true }\n", "n"),
    "good_merging": (
        END,
        END + "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 500000 }\n",
        "n",
    ),
    "good_parameters": (
        END,
        with_parameter("plansmith_note", "anything") + "optimization { graph { level: 2 } }\n",
        "n",
    ),
}


@pytest.fixture(scope="module")
def server(
    *,
    installation: Installation,
    site: Path,
    config: str,
    graph: Graph,
    write_model: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    """One server with every model of this module, the broken ones too."""
    folder = tmp_path_factory.mktemp("standin")
    repository = folder / "repository"
    for name, broken in BROKEN.items():
        assert broken.old in config, name
        model = None if name in {"no_file", "no_onnx"} else graph(broken.batch)
        write_model(repository, name, config.replace(broken.old, broken.new), model)
    (repository / "no_onnx" / "1" / "model.onnx").write_bytes(b"no ONNX at all")
    for name, (old, new, batch) in GOOD.items():
        write_model(repository, name, config.replace(old, new), graph(batch))
    fixed = config.replace("batch_size: 8", "batch_size: 0").replace("[ 3 ]", "[ 2, 3 ]").replace("[ -1 ]", "[ 2, -1 ]")
    write_model(repository, "good_fixed", fixed, graph(2))
    write_model(repository, "good_lookup", LOOKUP_CONFIG, lookup())
    write_model(repository, "good_scalar", SCALAR_CONFIG, scalar())
    write_model(repository, "good_optional", OPTIONAL_CONFIG, scaled())
    external = write_model(repository, "good_external", LOOKUP_CONFIG, None) / "model.onnx"
    external.mkdir()
    onnx.save(lookup(), external / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    models = [*BROKEN, *GOOD, "good_fixed", "good_lookup", "good_scalar", "good_optional", "good_external"]
    with TritonServer(
        repository, installation, folder / "log", site=site, models=models, exit_on_error=False, deadline_seconds=180
    ) as running:
        yield running


LOOKUP_CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "ids" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "rows" data_type: TYPE_FP16 dims: [ 1, 2 ] }
"""
SCALAR_CONFIG = """
backend: "onnxruntime"
input { name: "x" data_type: TYPE_FP64 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP64 dims: [ 1 ] }
"""
OPTIONAL_CONFIG = """
backend: "onnxruntime"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "scale" data_type: TYPE_FP32 dims: [ 2 ] optional: true }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


def lookup() -> onnx.ModelProto:
    """Rows of a table of five: an index beyond it fails while the model runs."""
    table = numpy_helper.from_array(np.arange(10, dtype=np.float16).reshape(5, 2), "table")
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 1])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT16, ["n", 1, 2])
    inner = helper.make_graph([node], "lookup", [ids], [rows], [table])
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def scalar() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, []) for name in "xy")
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "scalar", [x], [y])
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def scaled() -> onnx.ModelProto:
    """An input with a default of 10, which is what ONNX makes of an initializer that is also an input."""
    x, scale, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "scale", "y"))
    default = numpy_helper.from_array(np.full(2, 10, np.float32), "scale")
    inner = helper.make_graph([helper.make_node("Mul", ["x", "scale"], ["y"])], "scaled", [x, scale], [y], [default])
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Any]:
    """A client of each protocol, with the protocol's own module beside it."""
    module = getattr(tritonclient, request.param)
    url = server.http_url if request.param == "http" else server.grpc_url
    with module.InferenceServerClient(url) as connection:
        yield module, connection


def infer(client: Any, model: str, arrays: dict[str, np.ndarray[Any, Any]], *outputs: str) -> Any:
    module, connection = client
    kinds = {"float32": "FP32", "int64": "INT64", "float64": "FP64"}
    inputs = [module.InferInput(name, array.shape, kinds[array.dtype.name]) for name, array in arrays.items()]
    for tensor, array in zip(inputs, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return connection.infer(model, inputs, outputs=[module.InferRequestedOutput(name) for name in outputs] or None)


def sample(rows: int, length: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(rows)
    return {
        "a": generator.standard_normal((rows, 3), dtype=np.float32),
        "ids": generator.integers(0, 1000, (rows, length)),
    }


@pytest.fixture(scope="module")
def refusals(server: TritonServer) -> dict[str, str]:
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        index = connection.get_model_repository_index()
    return refused_models(server.log) | {entry["name"]: entry["reason"] for entry in index if "reason" in entry}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_configuration_refused_with_fault(name: str, refusals: dict[str, str]) -> None:
    """A broken configuration is refused with words that name the fault."""
    missing = [word for word in BROKEN[name].fragments if word not in refusals[name]]
    assert not missing, refusals[name]


def test_fitting_configurations_served(refusals: dict[str, str]) -> None:
    """Every configuration that fits is served."""
    assert not [name for name in refusals if name.startswith("good")]


@pytest.mark.parametrize("model", GOOD)
@pytest.mark.parametrize(("rows", "length"), [(1, 4), (8, 1)])
def test_answer_matches_onnx_runtime(client: Any, graph: Graph, model: str, rows: int, length: int) -> None:
    """The answer is that of ONNX Runtime."""
    arrays = sample(rows, length)
    session = onnxruntime.InferenceSession(graph("n").SerializeToString(), providers=["CPUExecutionProvider"])
    answer = infer(client, model, arrays)
    for name, expected in zip(("half", "twice"), session.run(["half", "twice"], arrays), strict=True):
        np.testing.assert_array_equal(answer.as_numpy(name), expected)
        assert answer.as_numpy(name).dtype == expected.dtype


def test_only_requested_output_answered(client: Any) -> None:
    """Only the requested output is answered."""
    arrays = sample(2)
    answer = infer(client, "good", arrays, "twice")
    np.testing.assert_array_equal(answer.as_numpy("twice"), arrays["ids"] * 2)
    assert answer.as_numpy("half") is None


def test_batchless_model_takes_own_shapes(client: Any) -> None:
    """A model without a batch dimension takes its own shapes."""
    arrays = sample(2)
    np.testing.assert_array_equal(infer(client, "good_fixed", arrays).as_numpy("half"), arrays["a"] / 2)


def test_scalar_travels_as_element(client: Any) -> None:
    """A scalar travels as one element."""
    answer = infer(client, "good_scalar", {"x": np.array([1.5])})
    np.testing.assert_array_equal(answer.as_numpy("y"), np.array([-1.5]))


def test_defaulted_input_may_be_omitted(client: Any) -> None:
    """An input with a default may be left out."""
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(infer(client, "good_optional", {"x": x}).as_numpy("y"), x * 10)
    np.testing.assert_array_equal(infer(client, "good_optional", {"x": x, "scale": x}).as_numpy("y"), x * x)


@pytest.mark.parametrize("model", ["good_lookup", "good_external"])
def test_half_precision_external_weights_served(client: Any, model: str) -> None:
    """Half precision and weights beside the file are served."""
    answer = infer(client, model, {"ids": np.array([[4], [1]])})
    np.testing.assert_array_equal(answer.as_numpy("rows"), np.array([[[8, 9]], [[2, 3]]], np.float16))


def test_failed_run_answers_own_request(client: Any) -> None:
    """What fails in a run is the answer to its request alone."""
    with pytest.raises(InferenceServerException, match=r"onnxruntime: .*Gather"):
        infer(client, "good_lookup", {"ids": np.array([[5]])})
    assert infer(client, "good_lookup", {"ids": np.array([[0]])}).as_numpy("rows") is not None


@pytest.mark.parametrize(("lengths", "most_runs"), [((4, 4, 4, 4), 3), ((2, 3, 2, 3), 4)])
def test_concurrent_requests_keep_own_rows(server: TritonServer, lengths: tuple[int, ...], most_runs: int) -> None:
    """Concurrent requests are merged where shapes agree, and each gets its own rows."""

    def ask(rows: int, length: int) -> None:
        arrays = sample(rows, length)
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            answer = infer((tritonclient.http, connection), "good_merging", arrays)
        np.testing.assert_array_equal(answer.as_numpy("twice"), arrays["ids"] * 2)
        np.testing.assert_array_equal(answer.as_numpy("half"), arrays["a"] / 2)

    rows, _ = before = runs(server)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, (1, 2, 1, 2), lengths))
    assert soon(lambda: runs(server)[0], rows + 6) == rows + 6
    assert runs(server)[1] - before[1] <= most_runs


def runs(server: TritonServer) -> tuple[int, int]:
    """Rows answered and runs made for them by the merging model."""
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        (counts,) = connection.get_inference_statistics("good_merging")["model_stats"]
    return counts["inference_count"], counts["execution_count"]
