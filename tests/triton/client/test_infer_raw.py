"""`plansmith infer` with what people have: texts, files and parameters, sent to models that take strings."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.cli.infer.infer import infer_command
from plansmith.errors import UsageError
from plansmith.triton.client import Client, Protocol
from plansmith.triton.server.server import TritonServer

from ...support.cli.command import check_refusal
from ...support.documentation import read_page, section

pytestmark = pytest.mark.xdist_group("client")

Infer = Callable[..., Any]


def data_of(answer: Any, output: str) -> Any:
    """The values of one output of an answer that is a JSON document."""
    assert answer.status == 0, answer
    return answer.document["outputs"][output]["data"]


@pytest.mark.slow
def test_each_text_is_row(infer: Infer) -> None:
    """Each text is a row whatever is in it."""
    texts = ["a cat", "", "żółw 🐢, [1, 2]", "x=1", "two\nlines"]
    arguments = [word for text in texts for word in ("--text", text)]
    assert data_of(infer("shout", *arguments, "--json"), "said") == [[text.upper()] for text in texts]


@pytest.mark.slow
def test_name_prefix_selects_input(infer: Infer) -> None:
    """A name before a text says which input is meant."""
    for arguments in (
        ("--text", "question=Who wrote?", "--text", "context=Ada wrote = it."),
        ("--text", "question=Who wrote?", "--input", "context=Ada wrote = it."),
    ):
        ((text,),) = data_of(infer("answers", *arguments, "--json"), "entities")
        assert json.loads(text) == []
    assert data_of(infer("shout", "--text", "text=text=a", "--json"), "said") == [["TEXT=A"]]


@pytest.mark.slow
def test_one_question_for_all_contexts(infer: Infer) -> None:
    """One question goes with all contexts."""
    contexts = ("--text", "context=Ada", "--text", "context=Bob wrote Ada")
    answer = infer("answers", "--text", "question=wrote Ada", *contexts, "--json")
    results = [[record["word"] for record in json.loads(row)] for (row,) in data_of(answer, "entities")]
    assert results == [["Ada"], ["wrote", "Ada"]]


@pytest.mark.slow
def test_files_go_as_bytes(infer: Infer, tmp_path: Path) -> None:
    """Files go as the bytes that they are."""
    (tmp_path / "a=b.jpg").write_bytes(bytes(range(256)) * 3)
    (tmp_path / "dog.jpg").write_bytes(b"\0\xff")
    labels = data_of(infer("classes", "--file", "a=b.jpg", "--file", "image=dog.jpg", "--json"), "label")
    assert [row[0] for row in labels] == ["768 bytes", "2 bytes"]
    assert data_of(infer("pixels", "--file", "dog.jpg", "--file", "dog.jpg", "--json"), "count") == [[2], [2]]


@pytest.mark.slow
def test_request_parameters_keep_kinds(infer: Infer, server: TritonServer) -> None:
    """The request carries parameters of their own kinds."""
    parameters = {
        "count": "3",
        "below": "-2",
        "share": "1.5e-3",
        "sample": "true",
        "text": "a=b",
        "quoted": '"12"',
        "e": "",
    }
    arguments = [word for name, value in parameters.items() for word in ("--parameter", f"{name}={value}")]
    right = {"count": 3, "below": -2, "share": 0.0015, "sample": True, "text": "a=b", "quoted": "12", "e": ""}
    for url in (server.http_url, f"grpc://{server.grpc_url}"):
        ((text,),) = data_of(infer("shout", "--text", "a", *arguments, "--url", url, "--json"), "told")
        assert json.loads(text) == right


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_parameters_go_with_batch_parts(address: Callable[[Protocol], str], protocol: Protocol) -> None:
    """Parameters go with each part of a batch."""
    texts = np.array([["a"], ["b"], ["c"], ["d"], ["e"]], dtype=object)
    with Client(address(protocol), model="shout", protocol=protocol) as client:
        answer = client.ask({"text": texts}, parameters={"most": 2**62, "warm": 0.5, "on": False})
        assert answer.requests == 2
        assert [json.loads(row) for row in answer.outputs["told"].ravel()] == [
            {"most": 2**62, "warm": 0.5, "on": False}
        ] * 5
        assert [json.loads(row) for row in client.infer({"text": texts}, outputs=["told"])["told"].ravel()] == [{}] * 5
        for wrong in ({"priority": 1}, {"triton_x": "a"}, {"a": 2**63}, {"a": float("nan")}, {"": 1}):
            with pytest.raises(UsageError, match="parameter"):
                client.ask({"text": texts}, parameters=wrong)


@pytest.mark.slow
def test_strings_written_whole_to_files(infer: Infer, tmp_path: Path) -> None:
    """Strings are written to files that hold all of them."""
    arguments = ("shout", "--text", "ä", "--text", "", "--only", "said", "--output")
    assert infer(*arguments, "o.npz").status == 0
    with np.load(tmp_path / "o.npz", allow_pickle=False) as arrays:
        assert arrays["said"].tolist() == [["Ä".encode()], [b""]]
    assert infer(*arguments, "o.json").status == 0
    assert json.loads((tmp_path / "o.json").read_text())["outputs"]["said"]["data"] == [["Ä"], [""]]


FILES = {
    "a folder": (("--file", "."), (". is a folder", "--file")),
    "no file": (("--file", "nope.jpg"), ("nope.jpg cannot be read: No such file", "name a file")),
    "no file by name": (("--file", "text=nope.jpg"), ("nope.jpg cannot be read: No such file",)),
    "an empty file": (("--file", "empty"), ("empty is empty",)),
    "a name with a zero": (("--file", "a\0b"), ("cannot be read",)),
    "a parameter without a value": (("--text", "a", "--parameter", "x"), ("--parameter 'x' is not NAME=VALUE",)),
    "a parameter twice": (("--text", "a", "--parameter", "x=1", "--parameter", "x=2"), ("'x' is given twice",)),
    "a parameter of Triton's": (("--text", "a", "--parameter", "timeout=1"), ("'timeout' cannot be the name",)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "says"), FILES.values(), ids=FILES.keys())
def test_unreadable_file_told_before_asking(
    infer: Infer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    """What cannot be read is told before anything is asked."""
    (tmp_path / "empty").touch()
    monkeypatch.setattr("plansmith.triton.client.Client", None)
    monkeypatch.setattr("plansmith.triton.server.server.TritonServer", None)
    check_refusal(infer("shout", *words, "--json"), 2, says)


MEANT = {
    "nothing": (("shout",), ("no input is given", "input text: string [batch, 1]", '--text "…"', "--file")),
    "nothing of two": (("answers",), ("no input is given", '--text question="…" --text context="…"')),
    "one of two": (
        ("answers", "--text", "question=a"),
        ("input 'context' is missing: it takes string [batch, 1]",),
    ),
    "none of two": (("answers", "--text", "a"), ("which 2 inputs take", "input context: string", "--text question=…")),
    "a wrong name": (("answers", "--text", "contxt=a"), ("no input 'contxt'; 'context' is meant, perhaps",)),
    "a wrong name of a file": (("classes", "--file", "picture=a.txt"), ("no input 'picture'",)),
    "numbers": (("echo", "--text", "value=3"), ("'value' takes int64", "--input value=VALUE")),
    "no strings": (("moody", "--text", "hi"), ("which no inputs take", "input mood: int32", "--input NAME=VALUE")),
    "given twice": (("shout", "--text", "a", "--input", "text=b"), ("'text' is given twice",)),
    "uneven": (
        ("answers", *("--text", "question=a") * 2, *("--text", "context=a") * 3),
        ("batch is 2 in input 'question' and 3 in 'context'",),
    ),
    "of two sizes": (("pixels", "--file", "a.txt", "--file", "b.txt"), ("of 1 to 6 bytes", "one by one")),
    "a wrong output": (("shout", "--text", "a", "--only", "sad"), ("no output 'sad'",)),
    "missing numbers": (("tiny", "--input", "a=1,2,3"), ("'ids' is missing: it takes int64 [batch, ?]",)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "says"), MEANT.values(), ids=MEANT.keys())
def test_unfit_value_told_with_names(
    infer: Infer, tmp_path: Path, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    """What no input takes is told by names with what to type."""
    (tmp_path / "a.txt").write_text("x\ny\nz\n")
    (tmp_path / "b.txt").write_text("b")
    check_refusal(infer(*words, "--json"), 2, says)


@pytest.mark.slow
def test_refusal_has_words_of_model(infer: Infer) -> None:
    """A refusal has the model's own words."""
    says = ("refused a request to shout: row 0 asks for a refusal", "correct what it names, or read the log")
    check_refusal(infer("shout", "--text", "refuse", "--json"), 8, says)


def test_documented_commands_accepted() -> None:
    """Commands of the page and the help are taken."""
    page = section(read_page("triton"), "Asking a model")
    lines = re.findall(r"^\s*(?:\$ )?plansmith infer (.*)$", f"{page}\n{infer_command.help}", re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        infer_command.make_context("infer", shlex.split(line))
