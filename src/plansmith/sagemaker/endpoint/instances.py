"""The instance types of SageMaker endpoints, read from configs/sagemaker/instances.yaml and configs/gpus.yaml."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from pydantic import Field

from plansmith.records.engine import Gpu
from plansmith.records.model import Record
from plansmith.system.gpu_catalog import find_kind

_PREFIX = "ml."
_GIB = 2**30


class _Size(Record):
    vcpus: int = Field(ge=1)
    gib: int = Field(ge=1)
    gpus: int = Field(default=0, ge=0)
    usd_per_hour: float | None = Field(default=None, gt=0)


class _Family(Record):
    local_storage: bool
    sizes: dict[str, _Size]


class ListPrices(Record):
    """Where the list prices come from: `usd_per_hour` of each size, on demand, without storage and data."""

    region: str
    as_of: datetime.date
    sources: tuple[str, ...]


class _Table(Record):
    sources: tuple[str, ...]
    prices: ListPrices
    families: dict[str, _Family]


class InstanceType(Record):
    """An instance type.

    Attributes:
        name: such as ml.g5.xlarge.
        vcpus: virtual CPUs.
        memory_bytes: its memory.
        gpus: how many GPUs it has.
        gpu: the kind of its GPUs; None without GPUs.
        local_storage: whether it has disks of its own, whose size is fixed and which take no key of KMS.
        usd_per_hour: its list price; None where no published price was found.
    """

    name: str
    vcpus: int
    memory_bytes: int
    gpus: int
    gpu: Gpu | None
    local_storage: bool
    usd_per_hour: float | None = None

    @property
    def family(self) -> str:
        """Such as g5."""
        return self.name.split(".")[1]

    @property
    def compute_capability(self) -> str | None:
        """That of its GPUs; None without GPUs."""
        return self.gpu.compute_capability if self.gpu else None

    @property
    def gpu_text(self) -> str:
        """Its GPU as a clause, such as `ml.g5.xlarge has NVIDIA A10G (8.6)`."""
        if self.gpu is None:
            return f"{self.name} has no GPU"
        return f"{self.name} has {self.gpu.name} ({self.gpu.compute_capability})"


def find_instance(name: str) -> InstanceType | None:
    """The instance type of a name; None for an unknown one."""
    return instances().get(name)


def known_instance(name: str) -> InstanceType:
    """The instance type of a name that was checked when the endpoint's file was read."""
    return instances()[name]


def nearest_instances(name: str) -> list[str]:
    """The names of known types that are most like an unknown one; ml. may be left out."""
    full = name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"
    return difflib.get_close_matches(full, instances(), n=3)


def fitting_instances(*, capabilities: Sequence[str], memory_bytes: int) -> list[str]:
    """The smallest type of each family with a GPU of one of these compute capabilities and that much GPU memory.

    Args:
        capabilities: compute capabilities; any when empty.
        memory_bytes: of one GPU.
    """
    smallest: dict[str, str] = {}
    for name, instance in instances().items():
        gpu = instance.gpu
        if gpu and gpu.memory_bytes >= memory_bytes and (not capabilities or gpu.compute_capability in capabilities):
            smallest.setdefault(instance.family, name)
    return list(smallest.values())


@cache
def instances() -> dict[str, InstanceType]:
    """All instance types by name; in a family, small before large."""
    return {
        f"{_PREFIX}{family}.{name}": InstanceType(
            name=f"{_PREFIX}{family}.{name}",
            vcpus=size.vcpus,
            memory_bytes=size.gib * _GIB,
            gpus=size.gpus,
            gpu=find_kind(family) if size.gpus else None,
            local_storage=values.local_storage,
            usd_per_hour=size.usd_per_hour,
        )
        for family, values in _table().families.items()
        for name, size in values.sizes.items()
    }


def list_prices() -> ListPrices:
    """Region, date and sources of the list prices."""
    return _table().prices


@cache
def _table() -> _Table:
    import yaml

    text = (files("plansmith") / "configs" / "sagemaker" / "instances.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))
