"""GPU catalog: kinds of GPU by common names, read from configs/gpus.yaml."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import Field, StringConstraints

from plansmith.errors import UsageError
from plansmith.records.engine import Gpu
from plansmith.records.model import Record

_MIB = 2**20
_OWN = re.compile(r"\s*([^=]*[^=\s])\s*=\s*([1-9]\d?\.\d)\s*:\s*([1-9]\d*)\s*([MG])(?:i?B)?\s*", re.IGNORECASE)
_UNITS = {"M": _MIB, "G": 2**30}
_MAKER = re.compile("nvidia|tesla|geforce|quadro")
_SIZE = re.compile(r"(?:ml\.)?([a-z0-9-]+)\.[a-z0-9]+")
_EXAMPLE = '"My GPU=8.9:24G", with its compute capability and memory'


class _Kind(Record):
    name: str
    cc: Annotated[str, StringConstraints(pattern=r"^\d+\.\d$")]
    mib: int = Field(ge=1)
    also: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()

    @property
    def gpu(self) -> Gpu:
        return Gpu(name=self.name, compute_capability=self.cc, memory_bytes=self.mib * _MIB)

    @property
    def keys(self) -> set[str]:
        return {_key(name) for name in (self.name, *self.also)}


class _Table(Record):
    sources: tuple[str, ...]
    data_centre: tuple[_Kind, ...]
    workstation: tuple[_Kind, ...]
    consumer: tuple[_Kind, ...]


def find_kind(text: str, local_gpus: Sequence[Gpu] = ()) -> Gpu:
    """Resolve a user's GPU name to a GPU type.

    Taken are the driver's name with or without its maker ("NVIDIA L4", "l4", "RTX 4090"), a short name, an instance
    type of AWS or its family ("ml.g5.xlarge", "g5"), or one's own "My GPU=8.9:24G": a name, its compute capability
    and its memory. Capitals, spaces and hyphens do not matter.

    Args:
        text: as it was written.
        local_gpus: the GPUs of this machine. A name that several kinds share ("A100") means the one that is
            here; and a GPU that is here needs no place in the table.

    Raises:
        UsageError: there is no such kind, or several have this name and none of them is here.
    """
    own = _OWN.fullmatch(text)
    if own is not None:
        memory = int(own[3]) * _UNITS[own[4].upper()]
        return Gpu(name=own[1].strip(), compute_capability=own[2], memory_bytes=memory)
    key, family = _key(text), _family(text)
    named = [kind.gpu for kind in _kinds() if key in kind.keys or family in kind.instances]
    present = [kind_of(gpu) for gpu in local_gpus]
    for kind in present:
        if kind in named or _key(kind.name) == key:
            return kind
    if len(named) != 1:
        raise _shared(text, named) if named else _unknown(text)
    return named[0]


def kind_names() -> tuple[str, ...]:
    """Return the driver names of all GPU types in the table, in its order."""
    return tuple(kind.name for kind in _kinds())


def kind_of(gpu: Gpu) -> Gpu:
    """Return the GPU type of a local GPU: the table's name, which is the same for every driver, or else its own."""
    match = next((kind.gpu for kind in _kinds() if is_kind(gpu, kind.gpu)), None)
    return match or Gpu(name=gpu.name, compute_capability=gpu.compute_capability, memory_bytes=gpu.memory_bytes)


def is_kind(gpu: Gpu, kind: Gpu) -> bool:
    """Whether a GPU is of a type; drivers before 470 omit "NVIDIA" from its name."""
    return _key(gpu.name) == _key(kind.name) and gpu.compute_capability == kind.compute_capability


def takes_newer_cuda(gpu: Gpu) -> bool | None:
    """Whether NVIDIA's forward compatibility package lets an older driver of this GPU run newer CUDA; None if unknown.

    Source: https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html, for GPUs of data centres and
    some workstations only.
    """
    table = _table()
    if any(is_kind(gpu, kind.gpu) for kind in table.data_centre):
        return True
    return False if any(is_kind(gpu, kind.gpu) for kind in table.consumer) else None


def _shared(text: str, kinds: Sequence[Gpu]) -> UsageError:
    names = [kind.name for kind in kinds]
    return UsageError(
        f"{text!r} is the name of {len(kinds)} kinds of GPU, of which none is in this machine",
        remedy=f"write {', '.join(names[:-1])} or {names[-1]}",
    )


def _unknown(text: str) -> UsageError:
    names = {_key(name): name for kind in _kinds() for name in (kind.name, *kind.also)}
    near = [names[key] for key in difflib.get_close_matches(_key(text), names, n=3)]
    remedy = (
        f"did you mean {' or '.join(near)}? Else" if near else "name one as nvidia-smi -L does, such as L4 or A10G;"
    )
    wrong = (
        "is no kind of GPU: write NAME=COMPUTE_CAPABILITY:MEMORY" if "=" in text else "is no GPU that plansmith knows"
    )
    return UsageError(f"{text!r} {wrong}", remedy=f"{remedy} write {_EXAMPLE}")


def _key(name: str) -> str:
    """Normalize a GPU name: lower case, without spaces, hyphens and the vendor prefix."""
    return _MAKER.sub("", re.sub("[^a-z0-9]", "", name.lower()))


def _family(text: str) -> str:
    """The family of an instance type; the text itself where it names no size."""
    lowered = text.strip().lower()
    match = _SIZE.fullmatch(lowered)
    return match[1] if match else lowered


def _kinds() -> tuple[_Kind, ...]:
    table = _table()
    return (*table.data_centre, *table.workstation, *table.consumer)


@cache
def _table() -> _Table:
    import yaml

    text = (files("plansmith") / "configs" / "gpus.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))
