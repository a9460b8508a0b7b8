"""Another `triton:` section makes another release of the same files, and Triton serves what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from plansmith.config.loader import read_specs
from plansmith.config.spec import make_spec
from plansmith.config.triton import TritonOptions
from plansmith.errors import RepositoryError, UsageError
from plansmith.records.release import OWN_NAMES, Manifest, PublishedVersion
from plansmith.steps.compilation import Compilation
from plansmith.steps.runner import Listener
from plansmith.triton.config.model_config import parse_config

from ..support.cli.in_process import InlineWorker

BEFORE_PACKAGE = ("fetch", "export", "lower", "compile", "validate")
TEXT = """<ir_version: 9, opset_import: ["" : 17]>
pair (float[n, 4] x, float[n] scale) => (float[n, 3] scores, float[n] total) {
  column = Unsqueeze (scale, one)
  wide = Mul (x, column)
  scores = MatMul (wide, weight)
  total = ReduceSum <keepdims = 0> (scores, one)
}
"""

Compile = Callable[..., tuple[PublishedVersion, Manifest]]


@pytest.fixture
def notices() -> list[str]:
    """What the compiles of a test said besides."""
    return []


@pytest.fixture
def compile_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]) -> Compile:
    """Compile a small graph with a `triton:` section, in this process."""
    monkeypatch.setattr("plansmith.steps.runner.Worker", InlineWorker)
    model = onnx.parser.parse_model(TEXT)
    weight = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
    model.graph.initializer.extend(
        [onnx.numpy_helper.from_array(weight, "weight"), onnx.numpy_helper.from_array(np.array([1]), "one")]
    )
    onnx.save(model, tmp_path / "pair.onnx")
    (tmp_path / "labels.txt").write_text("cat\ndog\nbird\n")

    listener = Listener()
    monkeypatch.setattr(listener, "notice", notices.append)

    def compile_it(triton: dict[str, Any], **more: Any) -> tuple[PublishedVersion, Manifest]:
        values = {
            "source": f"onnx:{tmp_path / 'pair.onnx'}",
            "artifacts": str(tmp_path / "artifacts"),
            "triton": triton,
        }
        values |= {"shapes": {"x": "1x4:4x4:8x4", "scale": "1:4:8"}}
        with Compilation(make_spec(values | more), relative_to=tmp_path, listener=listener) as compilation:
            return compilation.run()

    return compile_it


@pytest.fixture
def server_without_models() -> Iterator[str]:
    """The address of a server that has no models and loads none."""

    class Empty(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            index = self.path.endswith("/index")
            content = b"[]" if index else b'{"error": "nothing is loaded here"}'
            self.send_response(HTTPStatus.OK if index else HTTPStatus.BAD_REQUEST)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


RICH = {
    "max_batch_size": 2,
    "dynamic_batching": {"preferred_batch_size": [2], "max_queue_delay_microseconds": 1000},
    "model_warmup": "on",
    "inputs": {"x": {"dims": [2, 2]}},
    "outputs": {"scores": {"dims": [3, 1], "label_filename": "labels.txt"}},
    "response_cache": {"enable": True},
    "version_policy": {"specific": {"versions": [2]}},
    "parameters": {"intra_op_thread_count": "1"},
}


@pytest.mark.slow
def test_other_configuration_shares_files(
    compile_pair: Compile, tmp_path: Path, notices: list[str], server_without_models: str
) -> None:
    """A release of another configuration shares the files, and Triton serves it."""
    plain, _ = compile_pair({}, check_served=False)
    rich, manifest = compile_pair(RICH, allow_interface_change=True)
    assert (plain.version, rich.version) == (1, 2)
    assert {step.name for step in manifest.steps if step.cached} == set(BEFORE_PACKAGE)
    first, second = (Path(result.release) for result in (plain, rich))
    assert (first / "model" / "model.onnx").samefile(second / "model" / "model.onnx")
    assert manifest.served is not None
    assert {check.batch for check in manifest.served.checks} == {1, 2}

    package = manifest.package
    assert package.max_batch_size == 2
    assert package.support_files == ("labels.txt", "warmup/min/x", "warmup/min/scale")
    shapes = {tensor.name: tensor.dims for tensor in (*package.interface.inputs, *package.interface.outputs)}
    assert shapes == {"x": ("batch", 2, 2), "scale": ("batch",), "scores": ("batch", 3, 1), "total": ("batch",)}
    for place in package.support_files:
        shown = Path(rich.repository) / "pair" / place
        assert shown.samefile(second / place)
    config = parse_config((second / "config.pbtxt").read_text())
    assert [(sample.name, sample.batch_size) for sample in config.model_warmup] == [("min", 1), ("opt", 2)]
    assert list(config.model_warmup[0].inputs["x"].dims) == [2, 2]
    assert list(config.model_warmup[0].inputs["scale"].dims) == [1]
    assert (second / "warmup/min/x").stat().st_size == 16

    (written,) = read_specs(second / "spec.yaml", {}).models
    assert written.spec.triton == TritonOptions.model_validate(RICH).with_absolute_paths(tmp_path)
    again, _ = compile_pair(RICH, allow_interface_change=True)
    assert (again.version, again.unchanged) == (2, True)
    (tmp_path / "labels.txt").write_text("cat\ndog\nfox\n")
    assert not [notice for notice in notices if "does not serve" in notice]
    relabelled, _ = compile_pair(RICH, check_served=False, load_into=[server_without_models])
    assert relabelled.version == 3
    not_served = "Triton does not serve version 3: triton.version_policy names others"
    assert notices[-1] == f"{not_served}; not loaded into {server_without_models}"
    own = {path.name for path in Path(relabelled.release).iterdir()} - {"labels.txt"}
    assert own <= OWN_NAMES
    assert "fox" in (Path(relabelled.release) / "labels.txt").read_text()
    assert "bird" in (second / "labels.txt").read_text()


def test_gpu_release_tells_tensorrt_shapes(
    compile_pair: Compile,
) -> None:
    """A release for GPUs warms up and tells TensorRT in ONNX Runtime its shapes."""
    accelerators = {"gpu_execution_accelerator": [{"name": "tensorrt"}]}
    triton = {"optimization": {"execution_accelerators": accelerators}, "instance_group": [{"gpus": [0, 1]}]}
    published, manifest = compile_pair(triton, target="triton-26.03", check_served=False)
    config = parse_config((Path(published.release) / "config.pbtxt").read_text())
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.parameters["trt_profile_max_shapes"] == "x:8x4,scale:8"
    assert [(sample.name, sample.batch_size) for sample in config.model_warmup] == [("min", 1), ("opt", 4), ("max", 8)]
    assert manifest.package.support_files == ("warmup/min/x", "warmup/min/scale")
    assert (config.instance_group[0].kind, list(config.instance_group[0].gpus)) == (1, [0, 1])


def test_client_dims_are_relied_on(compile_pair: Compile) -> None:
    """Dims that clients use are part of what they rely on."""
    compile_pair({}, check_served=False)
    with pytest.raises(RepositoryError, match=r"x was float32\['batch', 4\], is float32\['batch', 2, 2\]"):
        compile_pair({"inputs": {"x": {"dims": [2, 2]}}}, check_served=False)


def test_unfitting_configuration_refused_early(compile_pair: Compile) -> None:
    """What does not fit the graph is refused before the engine is made."""
    with pytest.raises(UsageError) as refusal:
        compile_pair({"inputs": {"y": {}}, "outputs": {"scores": {"dims": [2]}}}, check_served=False)
    assert (refusal.value.model, refusal.value.step) == ("pair", "package")
    assert "inputs.y: the model has no input 'y'" in refusal.value.message
    assert "outputs.scores.dims: [2] cannot become [3]" in refusal.value.message
