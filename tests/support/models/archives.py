"""Models as producers put them into buckets, and archives as friends and strangers pack them."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np

from .graphs import save_product


def transformers_folder(folder: Path, *, weights: str = "model.safetensors", config: str = "") -> Path:
    """A model of transformers as far as fetching looks."""
    from safetensors.numpy import save

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config or '{"model_type": "bert"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / weights).write_bytes(save({"weight": np.ones(4, "float32")}))
    return folder


def graph_folder(folder: Path) -> Path:
    """An ONNX model with a weight in a file of its own."""
    folder.mkdir(parents=True)
    save_product(folder)
    return folder


def packed(folder: Path, *, below: str = ".") -> bytes:
    """A folder in a .tar.gz, as `tar czf` makes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(folder, below)
    return out.getvalue()


def member(name: str, content: bytes = b"x", *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """A member of an archive, whatever it is."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content) if kind == tarfile.REGTYPE else 0, kind, link
    return info


def hostile(*members: tarfile.TarInfo) -> bytes:
    """An archive of members that no `tar` would write."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size) if member.size else None)
    return out.getvalue()


def bomb(size: int, *, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Zeros of a size, packed: as a file, or as a header that belongs to one."""
    head = tarfile.TarInfo("bomb")
    head.size, head.type = size, kind
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as stream:
        stream.write(head.tobuf())
        left = size
        while left > 0:
            stream.write(bytes(min(left, 1 << 20)))
            left -= 1 << 20
        stream.write(bytes(1024))
    return out.getvalue()
