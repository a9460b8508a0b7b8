"""Models that are served with INT32 token ids, or with images in NHWC, through the command and on Triton."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.triton.client import Client

from ..support.cli.command import CommandLine, check_refusal
from ..support.cli.commands import serve
from ..support.models.encoders import save_bert, save_timm
from ..support.models.graphs import save
from ..support.triton.installed import installation, site

__all__ = ["installation", "site"]

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.usefixtures("installation", "site")]

TOKENS = """\
source: hf:./bert
name: tokens
io_dtypes: {input_ids: int32, attention_mask: int32}
shapes: {input_ids: "1x4:2x8:4x16"}
"""
IMAGES = """\
source: timm:./timm
name: images
io_layouts: {pixel_values: nhwc}
shapes: {pixel_values: "1x32x32x1:2x32x32x1:4x32x32x1"}
"""
FILE = """\
source: onnx:./net.onnx
name: file
io_dtypes: {ids: int32, mask: int32}
shapes: {ids: "1x4:2x8:4x16"}
"""

POOLED = """
pooled (int64[n, s] ids, int64[n, s] mask, float[n, 2] more) => (float[n, 2] y) {
    rows = Gather (table, ids)
    ones = Cast <to = 1> (mask)
    wide = Unsqueeze (ones, last)
    kept = Mul (rows, wide)
    sum = ReduceSum <keepdims = 0> (kept, middle)
    y = Add (sum, more)
}
"""
TABLE = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)


def save_pooled(folder: Path) -> None:
    """A file that takes INT64, with its weights beside it."""
    path = save(POOLED, folder, table=TABLE, last=np.array([2]), middle=np.array([1]))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=50)


def published(folder: Path, name: str, text: str, *arguments: str) -> str:
    """Compile a spec, with the check on Triton, and return the text of the served configuration."""
    (folder / f"{name}.yaml").write_text(text)
    CommandLine(folder).document("compile", f"{name}.yaml", *arguments)
    return (folder / "artifacts" / "repository" / name / "config.pbtxt").read_text()


@pytest.mark.parametrize("engine", ["onnxruntime", "python"])
def test_token_ids_are_int32(tmp_path: Path, engine: str) -> None:
    """Triton takes INT32 ids, and answers as it does to the same ids in INT64 of the model as it was."""
    save_bert(tmp_path / "bert", "ForSequenceClassification")
    served = published(tmp_path, "tokens", TOKENS, "--engine", engine)
    assert served.count("TYPE_INT32") == 2
    plain = TOKENS.replace("name: tokens", "name: plain").replace("io_dtypes", "# io_dtypes")
    assert "TYPE_INT32" not in published(tmp_path, "plain", plain, "--engine", engine)
    ids = np.array([[2, 6, 7, 3], [2, 9, 3, 0]])
    answers = []
    for name, dtype in (("tokens", np.int32), ("plain", np.int64)):
        with (
            serve(str(tmp_path / "artifacts" / "repository"), name, tmp_path / name) as (url, _),
            Client(url, model=name) as client,
        ):
            feed = {"input_ids": ids.astype(dtype), "attention_mask": (ids > 0).astype(dtype)}
            names = {tensor.name for tensor in client.signature().inputs}
            feed |= {name: np.zeros_like(ids) for name in names - feed.keys()}
            answers.append(client.infer(feed)["logits"])
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5, atol=1e-6)


def test_onnx_ids_are_int32(tmp_path: Path) -> None:
    """Triton takes INT32, which the graph converts, and answers as the file does to the same in INT64."""
    save_pooled(tmp_path)
    assert published(tmp_path, "file", FILE).count("TYPE_INT32") == 2
    ids = np.array([[2, 6, 7, 3], [2, 9, 3, 0]])
    feed = {"ids": ids.astype(np.int32), "mask": (ids > 0).astype(np.int32), "more": np.ones((2, 2), np.float32)}
    expected = (TABLE[ids] * (ids > 0)[..., None]).sum(1) + 1
    repository = str(tmp_path / "artifacts" / "repository")
    with serve(repository, "file", tmp_path / "served") as (url, _), Client(url, model="file") as client:
        np.testing.assert_allclose(client.infer(feed)["y"], expected, rtol=1e-5, atol=1e-6)


def test_images_have_their_channels_last(tmp_path: Path) -> None:
    """Triton takes images [height, width, channels], and answers as the model does to the same in NCHW."""
    save_timm(tmp_path / "timm", classes=("a", "b", "c"))
    published(tmp_path, "images", IMAGES)
    plain = IMAGES.replace("name: images", "name: plain").replace("io_layouts", "# io_layouts")
    published(tmp_path, "plain", plain.replace("32x32x1", "1x32x32"))
    pixels = np.random.default_rng(0).normal(size=(3, 1, 32, 32)).astype(np.float32)
    repository = str(tmp_path / "artifacts" / "repository")
    with serve(repository, "images", tmp_path / "served") as (url, _), Client(url, model="images") as client:
        served = client.infer({"pixel_values": pixels.transpose(0, 2, 3, 1)})["logits"]
    with serve(repository, "plain", tmp_path / "served") as (url, _), Client(url, model="plain") as client:
        np.testing.assert_allclose(served, client.infer({"pixel_values": pixels})["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("io_dtypes: {ids: int32}", ("the model has no input ids", "its inputs are input_ids")),
        ("io_layouts: {input_ids: nhwc}", ("input_ids has dims [batch, sequence]", "leave input_ids out")),
        ("io_dtypes: {input_ids: int16}", ("io_dtypes",)),
        ("io_layouts: {pixel_values: nhwc}\npipeline: {}", ("leave `io_layouts` out",)),
    ],
)
def test_forms_missing_from_model(tmp_path: Path, keys: str, says: tuple[str, ...]) -> None:
    """An input that is not there, or cannot be served so, is refused with the ones that can."""
    save_bert(tmp_path / "bert", "ForSequenceClassification")
    (tmp_path / "m.yaml").write_text(f"source: hf:./bert\n{keys}\n")
    check_refusal(CommandLine(tmp_path)("compile", "m.yaml", "--json"), 2, says)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("io_dtypes: {more: int32}", ("more is float32, and only int64 is served as int32", "leave more out")),
        ("io_dtypes: {id: int32}", ("io_dtypes: the model has no input id", "its inputs are ids, mask, more")),
        ("io_layouts: {ids: nhwc}", ("ids has dims [batch, s]", "leave ids out")),
    ],
)
def test_forms_missing_from_onnx_file(tmp_path: Path, keys: str, says: tuple[str, ...]) -> None:
    """They are refused as those of any other model."""
    save_pooled(tmp_path)
    (tmp_path / "m.yaml").write_text(f"source: onnx:./net.onnx\n{keys}\n")
    check_refusal(CommandLine(tmp_path)("compile", "m.yaml", "--json"), 2, says)
