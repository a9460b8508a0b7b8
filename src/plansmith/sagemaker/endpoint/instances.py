"""Instance types of SageMaker endpoints, read from configs/sagemaker/instances.yaml and configs/gpus.yaml."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from pydantic import Field

from plansmith.compilers.trt.versions import numbers_of
from plansmith.config.target_names import CPU_SUFFIX, runtime_names
from plansmith.config.targets import Target, Version, load_target
from plansmith.errors import UsageError
from plansmith.records.engine import Gpu
from plansmith.records.model import Device, Record
from plansmith.system.gpu_catalog import find_kind

_TARGET_PREFIX = "sagemaker-"
_DOMAIN = "amazonaws.com"
_PARTITION = "aws"
_REGION = re.compile(r"[a-z]{2,3}(-[a-z]+)+-\d")
_ECR_HOST = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")

_PREFIX = "ml."
_GIB = 2**30


class _Partition(Record):
    name: str
    domain: str


class _SystemImage(Record):
    driver: Version


class _ImagesTable(Record):
    sources: tuple[str, ...]
    partitions: dict[str, _Partition]
    accounts: dict[str, str]
    missing: dict[Version, tuple[str, ...]]
    system_images: dict[str, _SystemImage]
    drivers: dict[str, Version]


def versions() -> list[str]:
    """Return the container versions that a target describes, oldest first."""
    return [name.removeprefix(_TARGET_PREFIX) for name in runtime_names() if name.startswith(_TARGET_PREFIX)]


def regions() -> tuple[str, ...]:
    """Return the regions that have any version of the container."""
    return tuple(_images_table().accounts)


def is_region(name: str) -> bool:
    """Whether a name has the form of a region name, such as us-east-1."""
    return _REGION.fullmatch(name) is not None


def nearest_regions(region: str) -> list[str]:
    """Return the known regions with names most similar to an unknown one."""
    return difflib.get_close_matches(region, regions(), n=2)


def partition_of(region: str) -> str:
    """Return the partition of a region, used in its ARNs: aws, aws-cn or aws-us-gov."""
    return _partition(region).name


def container_target(version: str, device: Device) -> Target:
    """Return the target of a container.

    Args:
        version: the container's, such as 26.05.
        device: what its instances compute on.

    Raises:
        UsageError: no target describes that version.
    """
    if version not in versions():
        near = difflib.get_close_matches(version, versions(), n=1) or versions()[-1:]
        raise UsageError(
            f"no SageMaker container {version!r} of Triton is known: {', '.join(versions())}",
            remedy=f"write image: {{version: '{near[0]}'}}, or name an image of your own with image.uri",
        )
    return load_target(f"{_TARGET_PREFIX}{version}{CPU_SUFFIX if device == 'cpu' else ''}")


def image_uri(target: Target, device: Device, region: str, *, account: str = "") -> str:
    """Return the image of a target in a region.

    Args:
        target: describes a container of SageMaker.
        device: what its instances compute on.
        region: where they are.
        account: the account whose registry has a copy; AWS's own when empty.

    Raises:
        UsageError: the region does not have it, or the target names no image for the device.
    """
    template = target.images.get(device)
    if template is None:
        raise UsageError(
            f"{target.name} names no image for instances with a {device.upper()}",
            remedy="add it to the target's file, or name the image with image.uri",
        )
    table = _images_table()
    version = target.name.removeprefix(_TARGET_PREFIX).removesuffix(CPU_SUFFIX)
    if not account and (region not in table.accounts or region in table.missing.get(version, ())):
        available = [
            name for name in versions() if region in table.accounts and region not in table.missing.get(name, ())
        ]
        alternative = f"choose a version that is there ({', '.join(available)}), " if available else ""
        raise UsageError(
            f"{region} has no SageMaker container {version} of Triton",
            remedy=f"{alternative}name an account that has a copy with image.account, or an image with image.uri",
        )
    uri = template.format(account=account or table.accounts[region], region=region)
    return uri.replace(f".{region}.{_DOMAIN}/", f".{region}.{_partition(region).domain}/")


def ecr_image(uri: str) -> tuple[str, str, str] | None:
    """Return the account, region and repository of an Amazon ECR image; None for another registry."""
    match = _ECR_HOST.match(uri)
    return (match[1], match[2], match[3]) if match else None


def driver_warning(target: Target, system_image: str) -> str:
    """Return a warning on the instances' driver; empty if it is new enough, or the requirement is unknown.

    Images of NVIDIA's bring libraries that bridge a gap, which these system images do not all mount.

    Args:
        target: of the container.
        system_image: the instances' (`inference_ami`); empty for SageMaker's default, of which nothing is known.
    """
    table = _images_table()
    needed = table.drivers.get((target.cuda or "").partition(".")[0])
    if needed is None or (system_image and system_image not in table.system_images):
        return ""
    newest = max(table.system_images, key=lambda name: numbers_of(table.system_images[name].driver))
    if not system_image:
        oldest = min((image.driver for image in table.system_images.values()), key=numbers_of)
        if numbers_of(oldest) >= numbers_of(needed):
            return ""
        return (
            f"AWS does not say which driver the default system image has, and CUDA {target.cuda} of {target.name} is"
            f" made for {needed} and newer: inference_ami: {newest} has it"
        )
    driver = table.system_images[system_image].driver
    if numbers_of(driver) >= numbers_of(needed):
        return ""
    return (
        f"{system_image} has driver {driver}, and CUDA {target.cuda} of {target.name} is made for {needed} and newer:"
        f" unless the image's compatibility libraries bridge that, use inference_ami: {newest}"
    )


def system_images() -> tuple[str, ...]:
    """Return the system images (AMIs) of instances with NVIDIA GPUs."""
    return tuple(_images_table().system_images)


def _partition(region: str) -> _Partition:
    matching = (value for start, value in _images_table().partitions.items() if region.startswith(start))
    return next(matching, _Partition(name=_PARTITION, domain=_DOMAIN))


@cache
def _images_table() -> _ImagesTable:
    import yaml

    text = (files("plansmith") / "configs" / "sagemaker" / "images.yaml").read_text(encoding="utf-8")
    return _ImagesTable.model_validate(yaml.safe_load(text))


class _Size(Record):
    vcpus: int = Field(ge=1)
    gib: int = Field(ge=1)
    gpus: int = Field(default=0, ge=0)
    usd_per_hour: float | None = Field(default=None, gt=0)


class _Family(Record):
    local_storage: bool
    sizes: dict[str, _Size]


class ListPrices(Record):
    """List prices with their source: on-demand `usd_per_hour` of each size, without storage and data."""

    region: str
    as_of: datetime.date
    sources: tuple[str, ...]


class _Table(Record):
    sources: tuple[str, ...]
    prices: ListPrices
    families: dict[str, _Family]


class InstanceType(Record):
    """Instance type.

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
        """The instance family, such as g5."""
        return self.name.split(".")[1]

    @property
    def compute_capability(self) -> str | None:
        """The compute capability of its GPUs; None without GPUs."""
        return self.gpu.compute_capability if self.gpu else None

    @property
    def gpu_text(self) -> str:
        """The GPU as a clause, such as `ml.g5.xlarge has NVIDIA A10G (8.6)`."""
        if self.gpu is None:
            return f"{self.name} has no GPU"
        return f"{self.name} has {self.gpu.name} ({self.gpu.compute_capability})"


def find_instance(name: str) -> InstanceType | None:
    """Return an instance type by name; None if unknown."""
    return instances().get(name)


def known_instance(name: str) -> InstanceType:
    """Return an instance type by a name that was checked when the endpoint file was read."""
    return instances()[name]


def nearest_instances(name: str) -> list[str]:
    """Return the known types with names most similar to an unknown one; ml. may be omitted."""
    full = name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"
    return difflib.get_close_matches(full, instances(), n=3)


def fitting_instances(*, capabilities: Sequence[str], memory_bytes: int) -> list[str]:
    """Return the smallest type of each family with a GPU of one of these compute capabilities and enough GPU memory.

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
    """Return all instance types by name; within a family, smallest first."""
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
    """Return region, date and sources of the list prices."""
    return _table().prices


@cache
def _table() -> _Table:
    import yaml

    text = (files("plansmith") / "configs" / "sagemaker" / "instances.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))
