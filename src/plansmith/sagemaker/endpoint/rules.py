"""What is wrong between values of an endpoint's file that are each right by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plansmith.config.spec import Problem
from plansmith.errors import UsageError
from plansmith.records.model import Device
from plansmith.sagemaker.endpoint.images import (
    container_target,
    ecr_image,
    image_uri,
    is_region,
    nearest_regions,
    partition_of,
    regions,
)
from plansmith.sagemaker.endpoint.instances import known_instance
from plansmith.sagemaker.endpoint.recommendation_job import find_job_contradictions
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec

_KINDS = ("variants", "shadow_variants")


def find_contradictions(spec: EndpointSpec) -> Iterator[Problem]:
    """The problems of a spec whose values are each right by themselves."""
    partition = spec.role.split(":")[1]
    if partition != partition_of(spec.region):
        yield make_problem(("role",), f"is of {partition}, and {spec.region} is in {partition_of(spec.region)}")
    if spec.shadow_variants and len(spec.variants) > 1:
        yield make_problem(("shadow_variants",), "shadow one production variant, and there are several")
    if not any(variant.weight for variant in spec.variants):
        yield make_problem(("variants",), "all weights are 0, so that no variant gets requests")
    if spec.recommendation_job:
        yield from find_job_contradictions(spec.recommendation_job, spec.variants)
    names: set[str] = set()
    for kind in _KINDS:
        for row, variant in enumerate(getattr(spec, kind)):
            keys = (kind, str(row))
            if variant.name in names:
                yield make_problem((*keys, "name"), f"{variant.name!r} is the name of another variant")
            names.add(variant.name)
            yield from _model_problems(spec, variant, keys)
            yield from _scaling_problems(variant, keys)
            yield from _image_problems(spec, variant, keys)
            yield from _volume_problems(spec, variant, keys)


def find_unknown_region(values: Mapping[str, Any]) -> Iterator[Problem]:
    """A region without SageMaker's Triton containers, unless every variant names where its image is.

    Args:
        values: of the file, right or not, so that it is told with all else.
    """
    region = values.get("region")
    if not isinstance(region, str) or not is_region(region) or region in regions():
        return
    rows = [row for kind in _KINDS if isinstance(values.get(kind), list) for row in values[kind]]
    images = [row.get("image") for row in rows if isinstance(row, Mapping)]
    if images and all(isinstance(image, Mapping) and {"uri", "account"} & set(image) for image in images):
        return
    near = nearest_regions(region)
    meant = f"did you mean {' or '.join(near)}? Else name" if near else "name"
    yield make_problem(("region",), f"is not known to have SageMaker's Triton containers; {meant} image.account")


def make_problem(keys: tuple[str, ...], message: str) -> Problem:
    """A problem of the value that some keys lead to."""
    return Problem(keys, "wrong", f"{'.'.join(keys)!r}: {message}")


def _model_problems(spec: EndpointSpec, variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    """A container with one archive serves one of its models, and one version of each."""
    names = [model.partition("@")[0] for model in variant.models]
    default = variant.environment.default_model
    if len(set(variant.models)) < len(variant.models):
        yield make_problem((*keys, "models"), "one is named twice")
    if variant.model_package_group and (len(variant.models) > 1 or "@" in variant.models[0]):
        yield make_problem((*keys, "models"), "name one model without its version, which model_package_group tells")
    if variant.multi_model:
        if default:
            yield make_problem(
                (*keys, "environment", "default_model"), "has no meaning where each request names its model"
            )
        if spec.shadow_variants:
            # docs.aws.amazon.com/sagemaker/latest/dg/shadow-tests-exclusions.html
            yield make_problem((*keys, "multi_model"), "does not go with shadow variants")
        return
    if variant.copies > 1:
        yield make_problem((*keys, "copies"), "are for multi-model variants: write multi_model: true")
    if len(set(names)) < len(set(variant.models)):
        yield make_problem(
            (*keys, "models"), "a variant serves one version of a model, unless it says multi_model: true"
        )
    elif len(set(names)) > 1 and not default:
        listed = ", ".join(names)
        yield make_problem(
            (*keys, "models"),
            f"{listed} share a container that serves one: name it in environment.default_model, or write"
            " multi_model: true",
        )
    if default and default not in names:
        yield make_problem(
            (*keys, "environment", "default_model"), f"{default!r} is none of the models {', '.join(names)}"
        )


def _scaling_problems(variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    scaling = variant.auto_scaling
    if scaling is None:
        return
    if keys[0] == "shadow_variants":
        yield make_problem((*keys, "auto_scaling"), "is not for shadow variants")
    if not scaling.min_instances <= variant.instance_count <= scaling.max_instances:
        limits = f"{scaling.min_instances} to {scaling.max_instances}"
        yield make_problem(
            (*keys, "instance_count"), f"{variant.instance_count} is not among the {limits} of auto_scaling"
        )
    instance = known_instance(variant.instance_type)
    if scaling.gpu_utilization and not instance.gpus:
        yield make_problem((*keys, "auto_scaling", "gpu_utilization"), f"{instance.name} has no GPU")


def _volume_problems(spec: EndpointSpec, variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    instance = known_instance(variant.instance_type)
    if instance.local_storage and spec.kms_key:
        yield make_problem(("kms_key",), f"{instance.name} has disks of its own, for which SageMaker takes no key")
    if instance.local_storage and variant.volume_gb:
        yield make_problem((*keys, "volume_gb"), f"{instance.name} has disks of its own, whose size is fixed")
    if variant.inference_ami and not instance.gpus:
        yield make_problem((*keys, "inference_ami"), f"is for instances with GPUs, and {instance.name} has none")


def _image_problems(spec: EndpointSpec, variant: VariantSpec, keys: tuple[str, ...]) -> Iterator[Problem]:
    image = variant.image
    if image.uri:
        # docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
        ecr = ecr_image(image.uri)
        if ecr is None:
            yield make_problem((*keys, "image", "uri"), "is no image in Amazon ECR, from which SageMaker pulls")
        elif ecr[1] != spec.region:
            yield make_problem((*keys, "image", "uri"), f"is in {ecr[1]}, and SageMaker pulls from {spec.region} only")
    elif image.version:
        device: Device = "gpu" if known_instance(variant.instance_type).gpus else "cpu"
        try:
            image_uri(container_target(image.version, device), device, spec.region, account=image.account)
        except UsageError as error:
            yield make_problem((*keys, "image", "version"), f"{error.message} ({error.remedy})")
