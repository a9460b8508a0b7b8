"""ONNX files of strangers through `plansmith compile`: refused in words, and nothing elsewhere is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from ..support.cli.in_process import InProcess
from ..support.models.graphs import save, save_product

SECRET = b"root:x:0:0" * 1000


@dataclass(frozen=True)
class Hostile:
    """What is done to a graph whose weights lie beside it, and what is said of it.

    Attributes:
        facts: of the external weight.
        says: a part of the error.
        change: something else, with the model and its folder.
    """

    facts: dict[str, str]
    says: str
    change: Callable[[onnx.ModelProto, Path], object] = lambda _, __: None


def _link(_: onnx.ModelProto, folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("../secret")


def _pipe(_: onnx.ModelProto, folder: Path) -> None:
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")


def _huge(model: onnx.ModelProto, _: Path) -> None:
    model.graph.initializer[0].dims[:] = [2**40, 2**40]


def _below_zero(model: onnx.ModelProto, _: Path) -> None:
    model.graph.initializer[0].dims[:] = [-64, 5]


def _unknown(model: onnx.ModelProto, _: Path) -> None:
    model.graph.initializer[0].data_type = 99


CASES = {
    "a path that leads out": Hostile({"location": "../../../etc/passwd"}, "no path inside its own folder"),
    "an absolute path": Hostile({"location": "/etc/passwd"}, "no path inside its own folder"),
    "a link": Hostile({}, "are a link that leads out of the folder", _link),
    "a pipe": Hostile({}, "there is no file", _pipe),
    "10 GB of a tensor of 1 kB": Hostile({"length": "10000000000"}, "is to have 10,000,000,000 from byte 0"),
    "10 GB further": Hostile({"offset": "10000000000"}, "is cut off: it has 1,280 bytes"),
    "before the file": Hostile({"offset": "-8"}, "does not say where its weights lie"),
    "fewer bytes than none": Hostile({"length": "-1"}, "does not say where its weights lie"),
    "no number": Hostile({"offset": "0x10"}, "does not say where its weights lie"),
    "huge dims": Hostile({"length": ""}, "is cut off: it has 1,280 bytes", _huge),
    "dims below zero": Hostile({}, "does not say where its weights lie", _below_zero),
    "an unknown dtype": Hostile({}, "has a dtype that ONNX does not have: 99", _unknown),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_weights_refused(name: str, run: InProcess) -> None:
    """External weights lead nowhere else, and take no more than they have."""
    case, folder = CASES[name], run.folder / "model"
    folder.mkdir()
    (run.folder / "secret").write_bytes(SECRET)
    path, _ = save_product(folder)
    model = onnx.load(path, load_external_data=False)
    entries = {entry.key: entry.value for entry in model.graph.initializer[0].external_data} | case.facts
    del model.graph.initializer[0].external_data[:]
    for key, value in entries.items():
        model.graph.initializer[0].external_data.add(key=key, value=value)
    case.change(model, folder)
    path.write_bytes(model.SerializeToString())

    answer = run("compile", "onnx:model/net.onnx")

    assert answer.status == 3
    assert case.says in answer.stderr
    assert "Next: " in answer.stderr
    assert not list((run.folder / "artifacts" / "repository").glob("*"))


def test_deeply_nested_graph_refused(run: InProcess) -> None:
    """Branches within branches end at protobuf's own limit."""
    path = save("net (float[2] x) => (float[2] y) { y = Neg (x) }", run.folder)
    model = onnx.load(path)
    content = model.graph.SerializeToString()
    for _ in range(300):
        attribute = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH).SerializeToString()
        node = b"\x0a\x01x" + _field(5, attribute + _field(6, content))
        content = _field(1, node) + _field(2, b"g")
    path.write_bytes(model.SerializeToString() + _field(7, content))

    answer = run("compile", "onnx:net.onnx")

    assert answer.status == 3
    assert "is no ONNX model, or is cut off" in answer.stderr


def _field(number: int, content: bytes) -> bytes:
    """A message within a message, in protobuf's form."""
    size, length = bytearray(), len(content)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content
