"""Readers of files that others made: plans, graphs, configurations, archives, data, images and sound."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from plansmith.cli.infer.inputs import _read_value, read_document
from plansmith.cli.inspection import explain
from plansmith.compilers.trt.timing_cache import TimingCaches, key_of
from plansmith.data.reader import READERS as TABLES
from plansmith.data.tables import open_image
from plansmith.pipelines.audio.pipeline import wav
from plansmith.pipelines.image.preprocessing import ImageRecipe, crop, shortest
from plansmith.pipelines.served.sound import SoundStep
from plansmith.records.engine import BuildFlags, Gpu
from plansmith.records.model import LoweredModel
from plansmith.records.release import LOWERED_FILE, MANIFEST_FILE, LoweredGraph, Manifest
from plansmith.sagemaker.signatures import model_from_archive, model_from_file
from plansmith.sources import directory
from plansmith.sources.mlflow.model_version import FlavorOptions, choose, read_model_file
from plansmith.sources.mlflow.module_files import signed_inputs
from plansmith.sources.onnx_file import files_of, weights_of
from plansmith.sources.remote_files import RemoteFile
from plansmith.sources.s3 import extract
from plansmith.triton.checker.archive import look_into, unpacked
from plansmith.triton.checker.checker import check_repository

from ..models.archives import hostile, member
from ..models.graphs import save, save_product
from ..pipelines.images import ask_part, encoded
from ..stores.releases import make_release
from ..tensorrt.plan_files import plan
from ..triton.versions import CONFIG, graph
from .reader import Reader

DEEP = 100_000


def deep() -> Sequence[bytes]:
    """JSON that is nested deeper than Python's stack, and a number with more digits than Python reads."""
    return [b"[" * DEEP, b'{"a":' * DEEP, b'{"a": ' + b"9" * 5000 + b"}"]


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of a file."""

    def read_file(data: bytes, folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return read_file


def packed(read: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of what is packed with gzip: the checksum is right, whatever is inside."""
    return lambda data, folder: read(gzip.compress(data, 1), folder)


@cache
def made(make: Callable[[Path], object]) -> tuple[bytes, ...]:
    """The contents of the files that are made in a folder, by path."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return tuple(path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file())


def _product(folder: Path) -> None:
    path, _ = save_product(folder)
    (folder / "weights.bin").unlink()
    assert path.is_file()


def _branches(folder: Path) -> None:
    save(
        """branching (bool[1] c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = yes () => (float[2] a) { k = Constant <value = float[2] {1, 2}> () a = Add (x, k) },
            else_branch = no () => (float[2] b) { b = Neg (x) }
        >
    }""",
        folder,
    )


def _graphs() -> Sequence[bytes]:
    return [*made(_product), *made(_branches), graph(3)]


def _inspect_with_weights(path: Path) -> object:
    (path.parent / "weights.bin").write_bytes(bytes(4096))
    return files_of(path, weights_of(path))


def _check(root: Path) -> object:
    return check_repository(root, sagemaker=True, dynamo=True)


def _check_graph(path: Path) -> object:
    (path.parents[1] / "config.pbtxt").write_text(CONFIG)
    return _check(path.parents[2])


def _check_config(path: Path) -> object:
    (path.parent / "1").mkdir()
    (path.parent / "1" / "model.onnx").write_bytes(graph(1))
    return _check(path.parents[1])


def _check_archive(path: Path) -> object:
    with unpacked(path) as folder:
        return _check(folder)


def _configs() -> Sequence[bytes]:
    ensemble = """platform: "ensemble" max_batch_size: 4
input [{name: "a" data_type: TYPE_STRING dims: [1]}] output [{name: "b" data_type: TYPE_FP32 dims: [-1, 3]}]
ensemble_scheduling { step [{ model_name: "m" model_version: -1 input_map {key: "x" value: "a"}
output_map {key: "three" value: "b"} }] }"""
    sequence = """backend: "python" max_batch_size: 8 sequence_batching { max_sequence_idle_microseconds: 5
control_input [{name: "START" control [{kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]}]}]
state [{input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [1]}] }
model_warmup [{name: "w" batch_size: 1 inputs {key: "x" value: {data_type: TYPE_FP32 dims: [1] zero_data: true}}}]"""
    return [CONFIG.encode(), ensemble.encode(), sequence.encode(), b"name: '\\xff\\377'"]


def _tar(*members: tarfile.TarInfo) -> bytes:
    return gzip.decompress(hostile(*members))


def _tars() -> Sequence[bytes]:
    out = io.BytesIO()
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(fileobj=out, mode="w", format=form) as archive:
            for name, content in (("m/config.pbtxt", CONFIG.encode()), ("m/1/model.onnx", graph(1)), ("ü" * 90, b"x")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    links = _tar(
        member("m/config.pbtxt"),
        member("m/1", kind=tarfile.SYMTYPE, link="../../etc"),
        member("m/2", kind=tarfile.LNKTYPE, link="m/config.pbtxt"),
        member("bin/activate"),
        member("lib/python3.12/x.py"),
    )
    return [out.getvalue(), links, bytes(512)]


_TAR_TOKENS = (
    b"../",
    b"/etc/passwd",
    b"ustar\x0000",
    b"ustar  \x00",
    b"path=",
    b"GNU.sparse.map=0,9",
    b"\x80" + b"\xff" * 11,
)


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()


def _npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def _arrays() -> Sequence[bytes]:
    return [_npy(np.ones((4, 3), "float32")), _npy(np.array(["a", "b"]))]


def _odd_arrays() -> Sequence[bytes]:
    headers = [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': (((, 'shape': 1L",
        "\0",
    ]
    unreadable = _npy(np.array(["ab"])).replace(b"b\0\0\0", b"\xff" * 4)
    return [unreadable, *(b"\x93NUMPY\x01\x00\x76\x00" + header.encode().ljust(118) for header in headers)]


def _array_member(data: bytes, folder: Path) -> object:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", data)
    return in_file("x.npz", partial(_rows, suffix=".npz"))(out.getvalue(), folder)


def _rows(path: Path, *, suffix: str) -> object:
    table = TABLES[suffix](path)
    return [row for row, _ in zip(table.rows(table.columns), range(1000), strict=False)]


def _table(suffix: str, *seeds: bytes, hostile: Sequence[bytes] = ()) -> Reader:
    read = in_file(f"x{suffix}", partial(_rows, suffix=suffix))
    return Reader(read, lambda: seeds, (b'"', b"\n", b"\xef\xbb\xbf", b"\0"), lambda: hostile)


def _parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), folder / "x.parquet")


def _image_files() -> Sequence[bytes]:
    picture = Image.fromarray((np.arange(24 * 20 * 3) % 251).astype(np.uint8).reshape(24, 20, 3))
    kinds = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
    return [*(encoded(picture, kind) for kind in kinds), encoded(picture.quantize(), "PNG", transparency=3)]


def _sounds() -> Sequence[bytes]:
    import soundfile

    samples = np.sin(np.arange(1600) / 9)[:, None].repeat(2, axis=1)
    out = io.BytesIO()
    soundfile.write(out, samples.astype(np.float32), 16_000, format="FLAC")
    loud = wav(np.full((90, 1), 1e300), 8000, bits=64, floats=True)
    plain = [wav(samples, 16_000), wav(samples, 44_100, bits=24), wav(samples, 8000, bits=32, floats=True)]
    return [*plain, loud, out.getvalue()]


def _hear(data: bytes, _: Path, *, compressed: bool) -> object:
    settings = {
        "input": "sound",
        "output": "x",
        "mask": "mask",
        "dtype": "float32",
        "mask_dtype": "int64",
        "rate": 16_000,
        "fewest": 1,
        "most": 320_000,
        "compressed": compressed,
        "normalized": True,
        "spectrum": None,
    }
    answer = SoundStep(settings, Path()).answer([{"sound": np.array([[data]], object)}])[0]
    assert not isinstance(answer, dict) or np.isfinite(answer["x"]).all()
    return answer


def _safetensors(path: Path) -> None:
    directory.require_weights(path.parent, allow_pickle=False)


def _weights() -> Sequence[bytes]:
    from safetensors.numpy import save as saved

    return [saved({"a": np.ones(3, "float32")})]


def _mlflow(path: Path) -> object:
    listed = [RemoteFile(name, 1) for name in ("MLmodel", "model.onnx", "model/config.json", "data/model.pt2")]
    wishes = FlavorOptions(trust_remote_code=False, allow_pickle=False)
    return signed_inputs(path.parent), choose(read_model_file(path.read_bytes(), "m"), listed, wishes, "m")


_MLMODEL = b"""flavors: {onnx: {data: model.onnx, onnx_version: 1.19}, python_function: {loader_module: mlflow.onnx}}
signature:
  inputs: '[{"name": "x", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]'
"""
_TIMING = key_of("10.16.1.11", Gpu(name="L4", compute_capability="8.9", memory_bytes=1, driver="580.1"), BuildFlags())


def _timing_cache(path: Path) -> object:
    cache = TimingCaches(path.parents[1])
    with cache.lent(_TIMING, BuildFlags()) as loan:
        return loan.warnings, cache.files()


def _timings() -> Sequence[bytes]:
    return [
        json.dumps({"key": _TIMING.facts, "files": {f"{_TIMING.name}-{'0' * 16}.cache": "0" * 64}}).encode(),
        json.dumps({"key": _TIMING.facts, "files": {"x" * 300: "0"}}).encode(),
    ]


def _manifests() -> Sequence[bytes]:
    return [made(_release)[0]]


def _lowered_graphs() -> Sequence[bytes]:
    manifest = Manifest.model_validate_json(_manifests()[0])
    lowered = LoweredModel(
        components=manifest.onnx.components, precision=manifest.engine.precision, recipe=None, trials=(), layers=()
    )
    record = LoweredGraph(name="m", folder="out", lowered=lowered, data=None, validation=manifest.validation)
    return [record.model_dump_json().encode()]


def _release(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        release = make_release(Path(scratch, "repository"))
        (folder / MANIFEST_FILE).write_bytes((release.folder / MANIFEST_FILE).read_bytes())


_SIGNATURE = (
    b'{"inputs": [{"name": "x", "dtype": "float32", "dims": ["batch", 3]}], "outputs": [], "max_batch_size": 4}'
)
_RECIPE = ImageRecipe(
    steps=(shortest(16, "bicubic"), crop(16, 16, rounding="even")),
    scale=1 / 255,
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
    upright=True,
)
_JSON = (b"null", b"[", b"{}", b"1e999", b"-1", b'"\\ud800"', b"NaN", b"\xff")
_GRAPH_TOKENS = (b"\xff" * 9 + b"\x01", b"\x08", b"\x12", b"external_data", b"location", b"offset", b"length", b"-9")

FILES = {
    "plan": Reader(in_file("x.plan", explain), lambda: [plan(), plan(magic=b"vtrt")]),
    "graph-inspect": Reader(in_file("x.onnx", explain), _graphs, _GRAPH_TOKENS),
    "graph-source": Reader(
        in_file("x.onnx", _inspect_with_weights),
        _graphs,
        _GRAPH_TOKENS,
        lambda: [made(_product)[0].replace(b"weights.bin", b"weights.\xffin")],  # protobuf gives it as bytes
    ),
    "graph-check": Reader(in_file("r/m/1/model.onnx", _check_graph), _graphs, _GRAPH_TOKENS),
    "lowered-graph": Reader(in_file(LOWERED_FILE, explain), _lowered_graphs, _JSON, deep),
    "manifest": Reader(
        in_file(MANIFEST_FILE, explain),
        _manifests,
        _JSON,
        lambda: [*deep(), _manifests()[0].replace(b'"model": {', b'"": {')],
    ),
    "config": Reader(
        in_file("r/m/config.pbtxt", _check_config),
        _configs,
        (b"{", b"}", b"[", b"-1", b"1e400", b'"'),
        lambda: [b"input {" * DEEP],
    ),
    "archive-check": Reader(packed(in_file("x.tar.gz", _check_archive)), _tars, _TAR_TOKENS),
    "archive-source": Reader(
        packed(in_file("x.tar.gz", lambda path: extract(path, path.parent / "out", of="it", progress=lambda *_: None))),
        _tars,
        _TAR_TOKENS,
    ),
    "archive-endpoint": Reader(packed(in_file("x.tar.gz", model_from_archive)), _tars, _TAR_TOKENS),
    "archive-environment": Reader(
        in_file("x.tar.gz", look_into), lambda: [hostile(member("a")), *_tars()], _TAR_TOKENS
    ),
    "signature-file": Reader(in_file("x.json", model_from_file), lambda: [*_manifests(), _SIGNATURE], _JSON, deep),
    "array": Reader(_array_member, _arrays, (b"descr", b"fortran_order", b"shape", b"|O", b"(", b"'"), _odd_arrays),
    "arrays": Reader(in_file("x.npz", partial(_rows, suffix=".npz")), lambda: [_npz(x=np.ones(3)), _npz()]),
    "csv": _table(".csv", b'text,label\n"a, b",c\n', b'"'),
    "lines": _table(".txt", b"one\ntwo\n", b""),
    "json-lines": _table(
        ".jsonl",
        b'{"text": "a"}\n{"text": "b"}\n',
        b'[{"text": "a"}]',
        hostile=(b"[" * DEEP, b'{"a": 1}\n{' + b"[" * DEEP, b"9" * 5000),
    ),
    "parquet": Reader(in_file("x.parquet", partial(_rows, suffix=".parquet")), lambda: made(_parquet)),
    "image": Reader(lambda data, _: ask_part(_RECIPE, [data]), _image_files),
    "image-data": Reader(lambda data, _: open_image(data, "x"), _image_files),
    "sound": Reader(partial(_hear, compressed=False), _sounds, (b"RIFF", b"WAVE", b"fmt ", b"data", b"\xff\xfe")),
    "sound-compressed": Reader(
        partial(_hear, compressed=True), lambda: _sounds()[::-1], (b"fLaC", b"\xff\xfb", b"ID3")
    ),
    "weights": Reader(
        in_file("model.safetensors", _safetensors),
        _weights,
        _JSON,
        lambda: [DEEP.to_bytes(8, "little") + b"[" * DEEP, b"\xff" * 16],
    ),
    "model-config": Reader(
        in_file("config.json", lambda path: directory.require_kind(path.parent, "hf")),
        lambda: [b'{"model_type": "bert"}'],
        _JSON,
        deep,
    ),
    "mlmodel": Reader(
        in_file("MLmodel", _mlflow),
        lambda: [_MLMODEL],
        (b"&a ", b"*a", b"<<: ", b"!!set "),
        lambda: [b"flavors: &a {a: *a}", *deep()],
        count=50,
    ),
    "timing-cache": Reader(in_file(f"timing/{_TIMING.name}.json", _timing_cache), _timings, _JSON, deep),
    "request-json": Reader(
        in_file("x.json", lambda path: read_document(str(path))),
        lambda: [b'{"inputs": [{"name": "x", "shape": [2], "data": [1, 2]}]}', b'{"x": [1]}'],
        _JSON,
        deep,
    ),
    "request-array": Reader(in_file("x.npy", lambda path: _read_value("x", str(path))), _arrays, hostile=_odd_arrays),
}
