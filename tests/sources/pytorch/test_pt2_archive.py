"""A file of torch.export that could run code when it is loaded is refused, by name of what could; others are not."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plansmith.errors import SourceError
from plansmith.sources.pytorch import is_arithmetic, require_harmless

from .programs import AUTO, changed, net, saved


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch planted",)


def _pickled() -> dict[str, bytes]:
    entry = {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}
    config = {"config": {"0.weight": entry}}
    return {"data/weights/model_weights_config.json": json.dumps(config).encode()}


def _opaque() -> dict[str, bytes]:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = {"config": {"obj": entry}}
    return {"data/constants/model_constants_config.json": json.dumps(config).encode()}


RECORDS: dict[str, tuple[dict[str, bytes], str]] = {
    "a pickled weight": (_pickled(), "a pickle (0.weight)"),
    "a pickled constant": (_opaque(), "a pickle (obj)"),
    "an object beside": (
        {"data/constants/opaque_obj_0": pickle.dumps(_Evil())},
        "the file 'data/constants/opaque_obj_0'",
    ),
    "pickled weights of old": ({"data/weights/model.pt": pickle.dumps(_Evil())}, "the file 'data/weights/model.pt'"),
    "a library": ({"data/aotinductor/model/x.so": b"\x7fELF"}, "the file 'data/aotinductor/model/x.so'"),
    "another graph": ({"models/other.json": b"{}"}, "the file 'models/other.json'"),
    "examples": ({"data/sample_inputs/model.pt": pickle.dumps(_Evil())}, "a pickle of more than tensors"),
}


@pytest.mark.parametrize(("more", "said"), RECORDS.values(), ids=RECORDS.keys())
def test_file_beyond_numbers_refused(more: dict[str, bytes], said: str, tmp_path: Path) -> None:
    """A file with more than numbers is refused."""
    path = changed(net()[1], tmp_path / "model.pt2", more=more)
    with pytest.raises(SourceError, match="loading it could run code") as refused:
        require_harmless(path)
    assert said in refused.value.message
    assert "--allow-pickle" in refused.value.remedy


def _nodes(whole: Any) -> Any:
    return whole["graph_module"]["graph"]["nodes"]


def _size(whole: Any) -> Any:
    values = whole["graph_module"]["graph"]["tensor_values"]
    return values["input"]["sizes"][0]["as_expr"]


GRAPHS: dict[str, tuple[Callable[[Any], None], str]] = {
    "a command": (lambda whole: _nodes(whole)[0].update(target="torch.os.system"), "the operator 'torch.os.system'"),
    "a loader": (lambda whole: _nodes(whole)[0].update(target="torch.hub.load"), "the operator 'torch.hub.load'"),
    "a library": (lambda whole: _nodes(whole)[0].update(target="torch.ops.load_library"), "torch.ops.load_library"),
    "a reader of files": (
        lambda whole: _nodes(whole)[0].update(target="torch.ops.aten.from_file.default"),
        "from_file",
    ),
    "an operator of others": (lambda whole: _nodes(whole)[0].update(target="torch.ops.own.run.default"), "own.run"),
    "an operator as a value": (
        lambda whole: _nodes(whole)[0]["inputs"][0].update(arg={"as_operator": "torch.os.system"}),
        "the operator 'torch.os.system'",
    ),
    "a size": (lambda whole: _size(whole).update(expr_str="exec('import os')"), "in the place of a size"),
    "a condition": (lambda whole: whole.update(guards_code=["__import__('os').system('touch planted')"]), "of a size"),
    "a name": (
        lambda whole: whole["graph_module"]["graph"]["inputs"][-1]["as_tensor"].update(name="x=print()"),
        "the name 'x=print()'",
    ),
    "a form": (
        lambda whole: whole["graph_module"]["module_call_graph"][0]["signature"].update(in_spec='[1, "a(b)"]'),
        "as the form of its inputs",
    ),
}


@pytest.mark.parametrize(("change", "said"), GRAPHS.values(), ids=GRAPHS.keys())
def test_graph_with_code_refused(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    """A graph that says code is refused."""
    path = changed(net()[1], tmp_path / "model.pt2", more={}, graph=change)
    with pytest.raises(SourceError, match="loading it could run code") as refused:
        require_harmless(path)
    assert said in refused.value.message


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive at all"])
def test_a_damaged_file_is_said(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"is damaged, or no model that torch\.export\.save wrote"):
        require_harmless(path)


class _Branching(torch.nn.Module):
    """Needs sizes that are computed, a condition on them, and a part without gradients."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.shape[1] > 4:
            x = x[:, : x.shape[1] // 2]
        with torch.no_grad():
            counted = ids.max(dim=1).values * self.scale
        return {"rows": x.reshape(x.shape[0], -1).sum(1), "counted": counted}


def test_pytorch_files_accepted(tmp_path: Path) -> None:
    """What PyTorch itself writes is taken."""
    examples = [torch.randn(4, 8, 6), torch.randint(0, 9, (4, 7))]
    path = tmp_path / "model.pt2"
    for content in (net()[1], net(batch=1)[1], saved(_Branching(), examples, [{0: AUTO, 1: AUTO, 2: AUTO}, {0: AUTO}])):
        path.write_bytes(content)
        require_harmless(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mul(Integer(16), Symbol('s27', positive=True, integer=True))", True),
        ("Max(Integer(1), FloorDiv(Symbol('s27'), Integer(2)))", True),
        ("(L['x'].size()[1]*2) != torch.sym_max(1, L['x'].size()[1] // 2)", True),
        ("__import__('os')", False),
        ("Symbol('exec(1)')", False),
        ("L['x'].__class__", False),
        ("(lambda: 1)()", False),
        ("[1 for _ in L]", False),
        ("f'{L}'", False),
        ("1; 2", False),
        ("(" * 10_000, False),
        ("", False),
    ],
)
def test_only_size_arithmetic_accepted(text: str, expected: bool) -> None:
    """Only arithmetic of sizes is arithmetic."""
    assert is_arithmetic(text) is expected


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize(("kind", "said"), [("state", "a pickle of torch.save"), ("script", "a module of TorchScript")])
def test_other_files_of_pytorch_named(kind: str, said: str, tmp_path: Path) -> None:
    """A file that PyTorch wrote by another way is called what it is."""
    path = tmp_path / "net.pt2"
    if kind == "state":
        torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    else:
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))  # type: ignore[no-untyped-call]
    with pytest.raises(SourceError, match=said) as refused:
        require_harmless(path)
    assert "torch.export.save" in refused.value.remedy
