"""The images of SageMaker's Triton containers: where they are (configs/sagemaker/images.yaml) and what they need."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib.resources import files

from plansmith.compilers.trt.versions import numbers_of
from plansmith.config.target.names import CPU_SUFFIX, runtime_names
from plansmith.config.target.targets import Target, Version, load_target
from plansmith.errors import UsageError
from plansmith.records.model import Device, Record

_TARGET_PREFIX = "sagemaker-"
_DOMAIN = "amazonaws.com"
_PARTITION = "aws"
_REGION = re.compile(r"[a-z]{2,3}(-[a-z]+)+-\d")
_ECR_HOST = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")


class _Partition(Record):
    name: str
    domain: str


class _SystemImage(Record):
    driver: Version


class _Table(Record):
    sources: tuple[str, ...]
    partitions: dict[str, _Partition]
    accounts: dict[str, str]
    missing: dict[Version, tuple[str, ...]]
    system_images: dict[str, _SystemImage]
    drivers: dict[str, Version]


def versions() -> list[str]:
    """The versions of the container that a target describes, oldest first."""
    return [name.removeprefix(_TARGET_PREFIX) for name in runtime_names() if name.startswith(_TARGET_PREFIX)]


def regions() -> tuple[str, ...]:
    """The regions that have some version of the container."""
    return tuple(_table().accounts)


def is_region(name: str) -> bool:
    """Whether a name has the form of a region's, such as us-east-1."""
    return _REGION.fullmatch(name) is not None


def nearest_regions(region: str) -> list[str]:
    """The known regions whose names are most like an unknown one."""
    return difflib.get_close_matches(region, regions(), n=2)


def partition_of(region: str) -> str:
    """The partition of a region, with which its ARNs begin: aws, aws-cn or aws-us-gov."""
    return _partition(region).name


def container_target(version: str, device: Device) -> Target:
    """The target of a container.

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
    """The image of a target in a region.

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
    table = _table()
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
    """The account, region and repository of an image in Amazon ECR; None for an image of another registry."""
    match = _ECR_HOST.match(uri)
    return (match[1], match[2], match[3]) if match else None


def driver_warning(target: Target, system_image: str) -> str:
    """What to know about the driver of the instances; empty where it is new enough, or nothing is known of the need.

    Images of NVIDIA's bring libraries that bridge a gap, which these system images do not all mount.

    Args:
        target: of the container.
        system_image: the instances' (`inference_ami`); empty for SageMaker's default, of which nothing is known.
    """
    table = _table()
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
    """The system images of instances with NVIDIA GPUs."""
    return tuple(_table().system_images)


def _partition(region: str) -> _Partition:
    matching = (value for start, value in _table().partitions.items() if region.startswith(start))
    return next(matching, _Partition(name=_PARTITION, domain=_DOMAIN))


@cache
def _table() -> _Table:
    import yaml

    text = (files("plansmith") / "configs" / "sagemaker" / "images.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))
