"""The container of a variant: its image, and the environment that its start script reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plansmith.config.target.names import CPU_SUFFIX
from plansmith.config.target.targets import Target, load_target
from plansmith.errors import UsageError
from plansmith.records.model import Device
from plansmith.sagemaker.archives import Archive
from plansmith.sagemaker.endpoint.images import container_target, image_uri, versions
from plansmith.sagemaker.endpoint.variant import VARIABLE_FIELDS, VariantSpec
from plansmith.sagemaker.selection import FLAVOUR
from plansmith.sagemaker.start_script import ADDITIONAL_ARGUMENTS, VARIABLE_PREFIX

_VERSION_COMPATIBLE = "--backend-config=tensorrt,version-compatible=true"


@dataclass(frozen=True)
class Image:
    """The image of a variant.

    Attributes:
        uri: its name in full.
        device: what its instances compute on.
        target: what is in it.
    """

    uri: str
    device: Device
    target: Target


def resolve_image(region: str, variant: VariantSpec, archives: Sequence[Archive]) -> Image:
    """The image of a variant: as its spec says, and else by the target and device of its archives.

    Args:
        region: the endpoint's.
        variant: the variant.
        archives: those it serves.

    Raises:
        UsageError: there is none, or the archives need different ones.
    """
    device: Device = "gpu" if any(archive.device == "gpu" for archive in archives) else "cpu"
    if variant.image.version:
        target = container_target(variant.image.version, device)
    else:
        runtimes = sorted({archive.target.removesuffix(CPU_SUFFIX) for archive in archives})
        if len(runtimes) > 1:
            raise UsageError(
                f"its archives are for {' and '.join(runtimes)}, and it has one container",
                remedy="compile all for one target, or name one: `image: {version: ...}` of the variant",
            )
        target = load_target(archives[0].target)
    if target.flavour != FLAVOUR:
        raise UsageError(
            f"{target.name} is no image of SageMaker",
            remedy=f"compile it for --target {FLAVOUR}-{versions()[-1]}, or name an image with image.version",
        )
    uri = variant.image.uri or image_uri(target, device, region, account=variant.image.account)
    return Image(uri, device, target)


def container_environment(variant: VariantSpec, archives: Sequence[Archive]) -> dict[str, str]:
    """The environment of the container: what the archives need, then what the variant sets."""
    settings = variant.environment
    needed: dict[str, str] = {}
    arguments = list(settings.additional_args)
    for archive in archives:
        needed |= archive.environment
        arguments += needed.pop(ADDITIONAL_ARGUMENTS, "").split()
        arguments += [_VERSION_COMPATIBLE] if archive.version_compatible else []
    default = "" if variant.multi_model else settings.default_model or archives[0].default_model
    values: dict[str, object] = {name: getattr(settings, field) for name, field in VARIABLE_FIELDS.items()} | {
        "DEFAULT_MODEL_NAME": default,
        "ADDITIONAL_ARGS": " ".join(dict.fromkeys(arguments)),
    }
    typed = {f"{VARIABLE_PREFIX}{name}": _text(value) for name, value in values.items() if value not in {None, ""}}
    return dict(sorted({**needed, **typed, **settings.variables}.items()))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
