"""`plansmith infer` takes values in every form a person has them in, and prints or writes the answers."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.cli.infer.answers import npz_of
from plansmith.records.model import AxisRange
from plansmith.triton.client import Answer, Protocol
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.server import TritonServer

from ...support.cli.command import check_refusal
from ...support.faults.packages import draft_of, publish, write_package
from .served import TINY

pytestmark = pytest.mark.xdist_group("client")

DEEP = "[" * 100_000
"""JSON that is nested more deeply than Python's reader goes."""


@pytest.mark.slow
def test_answer_printed_with_dtypes_and_shapes(infer: Callable[..., Any]) -> None:
    """The answer is printed with dtypes, shapes and values."""
    answer = infer("tiny", "--input", "a=1,2,3", "--input", "ids=[[7, 8]]")
    assert answer.status == 0, answer
    assert answer.stdout.splitlines() == [
        "tiny, version 1, answered",
        "  half: float32 [1, 3]",
        "    [[0.5 1.  1.5]]",
        "  twice: int64 [1, 2]",
        "    [[14 16]]",
    ]


@pytest.mark.slow
def test_values_from_files_and_stdin(
    infer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: TritonServer
) -> None:
    """Values come from files and standard input."""
    a, ids = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([[7, 8], [9, 10]])
    right = {"half": (a / 2).tolist(), "twice": (ids * 2).tolist()}
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "both.npz", a=a, ids=ids)
    (tmp_path / "ids.json").write_text(json.dumps(ids.tolist()))
    (tmp_path / "both.json").write_text(json.dumps({"a": a.tolist(), "ids": ids.tolist()}))
    rows = [
        {"name": "a", "shape": [2, 3], "datatype": "FP32", "data": a.ravel().tolist()},
        {"name": "ids", "shape": [2, 2], "datatype": "INT64", "data": ids.tolist()},
    ]
    (tmp_path / "request.json").write_text(json.dumps({"inputs": rows}))
    for arguments in (
        ("--input", "a=a.npy", "--input", "ids=ids.json"),
        ("--input", "a=both.npz", "--input", "ids=both.json"),
        ("--input-json", "both.json"),
        ("--input-json", "request.json", "--encoding", "json"),
        ("--input-json", "both.json", "--url", f"grpc://{server.grpc_url}", "--shared-memory"),
        ("--input", "a=a.npy", "--input", "ids=-"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(ids.tolist())))
        answer = infer("tiny", *arguments, "--json")
        assert answer.status == 0, answer
        assert {name: output["data"] for name, output in answer.document["outputs"].items()} == right


@pytest.mark.slow
def test_strings_given_as_written(infer: Callable[..., Any]) -> None:
    """Strings are given as they are."""
    for value in ("a cat", '["a cat"]', "12"):
        answer = infer("echo", "--input", f"string={value}", "--only", "their_string", "--json")
        (output,) = answer.document["outputs"].values()
        assert output == {"dtype": "string", "shape": [1, 1], "data": [["a cat" if "cat" in value else "12"]]}


@pytest.mark.slow
def test_answers_written_to_files(infer: Callable[..., Any], tmp_path: Path) -> None:
    """Answers are written to files that hold all of them."""
    arguments = ("--input-json", "given.json", "--only", "their_bfloat16", "--only", "their_string")
    (tmp_path / "given.json").write_text(json.dumps({"bfloat16": [[0.5, 2]], "string": [["ä"]]}))
    written = infer(
        "echo", *arguments, "--only", "their_float32", "--input", "float32=NaN,-Infinity", "--output", "o.npz"
    )
    assert written.status == 0, written
    assert written.stdout.endswith("written to o.npz\n")
    with np.load(tmp_path / "o.npz", allow_pickle=False) as arrays:
        assert arrays["their_bfloat16"].tolist() == [[0.5, 2]]
        assert arrays["their_string"].tolist() == [["ä".encode()]]
        assert np.isnan(arrays["their_float32"][0, 0])
    assert infer("echo", *arguments, "--output", "o.json").status == 0
    outputs = json.loads((tmp_path / "o.json").read_text())["outputs"]
    assert outputs["their_bfloat16"] == {"dtype": "bfloat16", "shape": [1, 2], "data": [[0.5, 2]]}
    answer = infer("echo", "--input", "float32=NaN,-Infinity", "--only", "their_float32", "--json")
    assert answer.document["outputs"]["their_float32"]["data"] == [["NaN", "-Infinity"]]
    again = infer("echo", *arguments, "--output", "o.json", "--json")
    check_refusal(again, 2, ("o.json is there already", "--force"))
    assert infer("echo", *arguments, "--output", "o.json", "--force").status == 0


@pytest.mark.slow
def test_binary_bytes_escaped_or_base64(infer: Callable[..., Any], tmp_path: Path) -> None:
    """Bytes that are no text are marked as Base64 in JSON."""
    arguments = ("echo", "--input", "string=no text", "--only", "their_string")
    data = infer(*arguments, "--json").document["outputs"]["their_string"]["data"]
    assert [[base64.b64decode(item["base64"]) for item in row] for row in data] == [[b"\xff\x00"]]
    check_refusal(infer(*arguments, "--output", "o.npz", "--json"), 2, ("strings that end in a zero byte", ".json"))
    assert infer(*arguments, "--output", "o.json").status == 0
    assert json.loads((tmp_path / "o.json").read_text())["outputs"]["their_string"]["data"] == data


@pytest.mark.slow
def test_drawn_inputs_follow_given_ones(infer: Callable[..., Any]) -> None:
    """Inputs that are not given are drawn, in the sizes of those that are given."""
    answer = infer("tiny", "--random", "--input", f"ids={[[5, 6]] * 19}", "--json")
    assert answer.document["requests"] == 3
    assert answer.document["outputs"]["half"]["shape"] == [19, 3]
    assert answer.document["outputs"]["twice"]["data"] == [[10, 12]] * 19


@pytest.mark.slow
def test_release_tells_inputs_and_sizes(
    infer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release tells what its model takes and which sizes are usual."""
    root = tmp_path / "models"
    package = write_package(tmp_path / "package", "tiny")
    draft = draft_of(package, model="tiny")
    onnx = draft.onnx.model_copy(update={"axes": {"length": AxisRange(min=1, opt=6, max=9)}})
    packed = draft.package.model_copy(update={"interface": TINY, "max_batch_size": 8})
    publish(root, package, draft.model_copy(update={"package": packed, "onnx": onnx}))
    assert ModelRepository(root).versions("tiny") == [1]
    monkeypatch.setattr("plansmith.triton.client.connection.Connection.config", None)  # it is not asked
    answer = infer("tiny@1", "--random", "--repository", root, "--json")
    assert answer.status == 0, answer
    assert answer.document["outputs"]["twice"]["shape"] == [1, 6]
    check_refusal(
        infer("tiny", "--input", "b=1", "--repository", root, "--json"), 2, ("no input 'b'", "[batch, length]")
    )
    check_refusal(infer("other", "--random", "--repository", root, "--json"), 7, ("no model 'other'",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tiny",), ("no input is given", "input ids: int64 [batch, ?]", "--random")),
        (("tiny", "--input", "a"), ("--input 'a' is not NAME=VALUE",)),
        (("tiny", "--input", "a=1,2,3", "--input", "a=1,2,3"), ("'a' is given twice",)),
        (("tiny", "--input", "a=one"), ("--input a=one is neither a file nor numbers",)),
        (("tiny", "--input", "a=missing.npy"), ("missing.npy",)),
        (("tiny", "--input", "a=empty.npy"), ("empty.npy cannot be read",)),
        (("tiny", "--input", "a=objects.npz"), ("objects.npz cannot be read", "allow_pickle")),
        (("tiny", "--input", "a=damaged.npz"), ("damaged.npz cannot be read",)),
        (("tiny", "--input", "a=torn.npz"), ("torn.npz cannot be read",)),
        (("tiny", "--input", "a=huge.npy"), ("huge.npy cannot be read",)),
        (("tiny", "--input", "a=notes.npz"), ("notes.npz cannot be read", "another file")),
        (("tiny", "--input", "a=no.json"), ("no.json cannot be read as JSON",)),
        (("tiny", "--input", "a=deep.json"), ("deep.json cannot be read as JSON",)),
        (("tiny", "--input-json", "deep.json"), ("deep.json cannot be read as JSON",)),
        (("tiny", "--input", "a=DEEP"), ("is neither a file nor numbers",)),
        (("tiny", "--input", "a=list.json", "--input", "ids=two.npz"), ("two.npz holds no 'ids'", "x, y")),
        (("tiny", "--input-json", "list.json"), ("list.json is no JSON object",)),
        (("tiny", "--input-json", "short.json"), ("input 'a' has no data that fits its shape",)),
        (("tiny", "--input", "a=1,2", "--input", "ids=1.5"), ("takes [batch, 3]", "was given decimals")),
        (("tiny", "--input", "a=[[1,2,3],[1]]", "--input", "ids=1"), ("input 'a' is no array",)),
        (("tiny", "--input", "a=[[1,2,3],[1]]", "--random"), ("input 'a' is no array",)),
        (("tiny", "--input", "b=1", "--random"), ("no input 'b'",)),
        (("tiny", "--input", "a=1,2", "--random"), ("cannot have the shape 1x2", "[batch, 3]")),
        (("tiny", "x.jpg", "--random"), ("unexpected extra argument (x.jpg)", "--help")),
        (("tiny", "--input", "a=-", "--input-json", "-"), ("standard input is to be read twice",)),
        (("tiny", "--random", "--only", "third"), ("no output 'third'", "half, twice")),
        (("tiny", "--random", "--output", "answer.txt"), ("answer.txt is neither .npz nor .json",)),
        (("tiny", "--random", "--header", "secret"), ("a --header is not",)),
        (("tiny", "--random", "--url", "nonsense"), ("nonsense",)),
    ],
)
def test_wrong_option_told_in_message(
    infer: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    """What is given wrongly is told in one message."""
    (tmp_path / "empty.npy").touch()
    write_damaged(tmp_path)
    (tmp_path / "no.json").write_text("{")
    (tmp_path / "deep.json").write_text(DEEP)
    (tmp_path / "list.json").write_text("[1, 2, 3]")
    (tmp_path / "short.json").write_text('{"inputs": [{"name": "a", "shape": [1, 3], "data": [1]}]}')
    np.savez(tmp_path / "two.npz", x=[1], y=[2])
    check_refusal(infer(*(word.replace("DEEP", DEEP) for word in words), "--json"), 2, says)


def write_damaged(folder: Path) -> None:
    """Files that NumPy opens, and cannot read the arrays of; one whose array is larger than any memory."""
    np.savez(folder / "objects.npz", a=np.array([{}, None], dtype=object))
    np.savez(folder / "damaged.npz", a=np.arange(1000.0))
    np.savez_compressed(folder / "torn.npz", a=np.random.default_rng(0).normal(size=1000))
    for name, place in (("damaged.npz", 400), ("torn.npz", 400)):
        data = bytearray((folder / name).read_bytes())
        data[place : place + 40] = bytes(byte ^ 0xFF for byte in data[place : place + 40])
        (folder / name).write_bytes(data)
    with (folder / "huge.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(folder / "notes.npz", "w") as archive:
        archive.writestr("a.txt", "no array")


def test_outputs_of_any_name_written() -> None:
    """Outputs of any name are written."""
    outputs = {name: np.arange(3.0) + number for number, name in enumerate(("file", "allow_pickle", "a/b", "x.npy"))}
    with np.load(io.BytesIO(npz_of(Answer(outputs, "1", 1))), allow_pickle=False) as arrays:
        for name, values in outputs.items():
            np.testing.assert_array_equal(arrays[name], values)


@pytest.mark.slow
def test_refusal_and_absence_exit_codes(infer: Callable[..., Any]) -> None:
    """A refusal of Triton and a server that is away have exit codes of their own."""
    check_refusal(infer("moody", "--input", "mood=-1", "--json"), 8, ("not in the mood", "correct what it names"))
    check_refusal(infer("tiny@9", "--random", "--json"), 8, ("version",))
    check_refusal(
        infer("tiny", "--random", "--url", "127.0.0.1:1", "--json"), 9, ("no server is reached", "--url", "--serve")
    )
    check_refusal(infer("tiny", "--random", "--url", "grpc://127.0.0.1:1", "--json"), 9, ("grpc://127.0.0.1:1",))


def test_default_address_follows_protocol() -> None:
    """Where Triton answers by default follows the protocol."""
    from plansmith.cli.infer.infer import _client
    from plansmith.system.urls import DEFAULT_ADDRESSES

    options: dict[str, Any] = {"encoding": "binary", "timeout": 1, "shared_memory": False, "headers": ()}
    for protocol, url, expected in (
        (None, None, "http://127.0.0.1:8000"),
        ("grpc", None, "grpc://127.0.0.1:8001"),
        (None, "grpcs://box:1", "grpcs://box:1"),
    ):
        with _client("tiny", "", None, {**options, "protocol": protocol, "url": url}) as client:
            assert str(client._connection.address) == expected
    protocols: tuple[Protocol, ...] = ("http", "grpc")
    assert tuple(DEFAULT_ADDRESSES) == protocols
