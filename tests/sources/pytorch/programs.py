"""Files of torch.export.save, right ones and changed ones."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

AUTO = torch.export.Dim.AUTO
GRAPH = "models/model.json"


def saved(module: torch.nn.Module, examples: Sequence[torch.Tensor], moving: Sequence[dict[int, Any]]) -> bytes:
    """What torch.export.save writes of a module, with some dims that move."""
    program = torch.export.export(module, tuple(examples), dynamic_shapes=list(moving))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def net(*, batch: int = 2) -> tuple[torch.nn.Module, bytes]:
    """A small classifier of four numbers each, as MLflow exports it: a batch of one does not move."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    return module, saved(module, [torch.randn(batch, 4)], [{0: AUTO}])


def changed(content: bytes, into: Path, *, more: dict[str, bytes], graph: Callable[[Any], None] | None = None) -> Path:
    """A file with other records: `more` by their names below its root; `graph` changes the graph's JSON."""
    with zipfile.ZipFile(io.BytesIO(content)) as before:
        records = {name: before.read(name) for name in before.namelist()}
    root = next(name for name in records if name.endswith(GRAPH)).removesuffix(GRAPH)
    if graph is not None:
        whole = json.loads(records[root + GRAPH])
        graph(whole)
        records[root + GRAPH] = json.dumps(whole).encode()
    records |= {root + name: body for name, body in more.items()}
    with zipfile.ZipFile(into, "w") as after:
        for name, body in records.items():
            after.writestr(name, body)
    return into
