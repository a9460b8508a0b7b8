"""Endpoint checks: whether its instances and images can serve its archives, before anything is created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plansmith.compilers.trt.versions import is_same, loads_in, numbers_of
from plansmith.errors import EngineError, UsageError
from plansmith.formatting import count, format_bytes
from plansmith.sagemaker.archives import Archive
from plansmith.sagemaker.endpoint.desired import Image, VariantArchives, resolve_image
from plansmith.sagemaker.endpoint.instances import (
    InstanceType,
    container_target,
    driver_warning,
    fitting_instances,
    instances,
    known_instance,
    versions,
)
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec

_AMPERE = (8, 0)


def require_serveable(spec: EndpointSpec, archives: VariantArchives) -> None:
    """Require that every variant can serve its archives.

    Raises:
        EngineError: lists every reason why one cannot.
    """
    reasons = [
        f"variant {variant.name}: {reason}"
        for variant in spec.all_variants
        for reason in _variant_reasons(spec.region, variant, archives[variant.name])
    ]
    if reasons:
        raise EngineError(
            "\n  ".join([f"{spec.name} cannot serve this, for {count(len(reasons), 'reason')}:", *reasons]),
            remedy="change instance_type or image of the variant, or compile the release for them; nothing was created",
        )


def instance_warnings(spec: EndpointSpec, archives: VariantArchives) -> list[str]:
    """Return warnings on instance GPUs and their drivers, a line per affected variant."""
    lines = []
    for variant in spec.all_variants:
        image = resolve_image(spec.region, variant, archives[variant.name])
        instance = known_instance(variant.instance_type)
        if image.device == "gpu":
            warning = driver_warning(image.target, variant.inference_ami)
        else:
            warning = f"{instance.gpu_text}, which its CPU image leaves idle" if instance.gpu else ""
        lines += [f"{variant.name}: {warning}"] if warning else []
    return lines


def serving_instances(archive: Archive) -> list[str]:
    """Return the instance types that can serve an archive, as far as known; those without GPUs for a CPU archive."""
    return [
        name
        for name, instance in instances().items()
        if (instance.gpu is not None) == (archive.device == "gpu") and not any(_instance_reasons(archive, instance))
    ]


def _variant_reasons(region: str, variant: VariantSpec, archives: Sequence[Archive]) -> Iterator[str]:
    instance = known_instance(variant.instance_type)
    image: Image | None = None
    try:
        image = resolve_image(region, variant, archives)
    except UsageError as error:
        yield f"{error.message} ({error.remedy})"
    for archive in archives:
        label = ", ".join(archive.releases)
        if image is not None:
            yield from (f"{label}: {reason}" for reason in _image_reasons(archive, image))
        yield from (f"{label}: {reason}" for reason in _instance_reasons(archive, instance))
    if image is not None and image.device == "gpu":
        yield from _capability_reasons(image, instance)


def _image_reasons(archive: Archive, image: Image) -> Iterator[str]:
    """Return why the image's TensorRT cannot load the plans: not its version, nor older version-compatible ones."""
    built, present = archive.tensorrt, image.target.tensorrt
    if built is None or present is None or is_same(built, present):
        return
    if archive.version_compatible and loads_in(built, present):
        return
    kind = "version-compatible plan" if archive.version_compatible else "plan"
    remedy = _tensorrt_remedy(archive, built, present)
    yield f"its {kind} is of TensorRT {built}, and {image.uri} has {present}; {remedy}"


def _tensorrt_remedy(archive: Archive, built: str, present: str) -> str:
    containers = {version: container_target(version, "gpu").tensorrt or "" for version in versions()}
    newest = max(containers.values(), key=numbers_of)
    if numbers_of(built)[:1] > numbers_of(newest)[:1]:
        return f"no container of SageMaker's has it yet: compile for --target sagemaker-{versions()[-1]}"
    matching = [version for version, tensorrt in containers.items() if is_same(built, tensorrt)]
    if matching:
        return f"image: {{version: '{matching[-1]}'}} has it"
    alternative = "" if archive.version_compatible else ", or an older one of the same major with version_compatible"
    return f"build the plan with {present}{alternative}"


def _capability_reasons(image: Image, instance: InstanceType) -> Iterator[str]:
    floor, capability = image.target.min_compute_capability, instance.compute_capability
    if floor and capability and numbers_of(capability) < numbers_of(floor):
        yield f"{image.uri} needs GPUs of compute capability {floor} or newer, and {instance.gpu_text}"


def _instance_reasons(archive: Archive, instance: InstanceType) -> Iterator[str]:
    most = max(map(archive.loaded_on, archive.compute_capabilities or (None,)))
    fitting = fitting_instances(capabilities=archive.compute_capabilities, memory_bytes=most)
    alternative = f"; {', '.join(fitting)} would do" if fitting else ""
    needs_gpu = archive.device == "gpu" or bool(archive.compute_capabilities)
    if needs_gpu and instance.gpu is None:
        yield f"it is for GPUs, and {instance.name} has none{alternative}"
        return
    if archive.compute_capabilities and not _runs_on(archive, instance.compute_capability or ""):
        built = " and ".join(archive.compute_capabilities)
        yield f"its plans are for compute capability {built}, and {instance.gpu_text}{alternative}"
    loaded = archive.loaded_on(instance.compute_capability)
    size = f"it loads {format_bytes(loaded)} of files"
    if needs_gpu and instance.gpu and loaded > instance.gpu.memory_bytes:
        memory = format_bytes(instance.gpu.memory_bytes)
        yield f"{size}, and a GPU of {instance.name} has {memory} of memory{alternative}"
    if loaded > instance.memory_bytes:
        yield f"{size}, and {instance.name} has {format_bytes(instance.memory_bytes)} of memory"


def _runs_on(archive: Archive, capability: str) -> bool:
    if capability in archive.compute_capabilities:
        return True
    return archive.hardware_compatibility == "ampere_plus" and numbers_of(capability) >= _AMPERE
