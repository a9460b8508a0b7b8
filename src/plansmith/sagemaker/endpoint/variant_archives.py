"""The archives of an endpoint's variants, made of the releases that its spec names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from plansmith.config.target.targets import Target
from plansmith.errors import PlansmithError
from plansmith.sagemaker.archives import Archive, ArchivePlan, plan_archives, write_archive
from plansmith.sagemaker.endpoint.images import container_target
from plansmith.sagemaker.endpoint.instances import known_instance
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.sagemaker.selection import PackageRequest
from plansmith.triton.repository.repository import ModelRepository

VariantArchives = Mapping[str, tuple[Archive, ...]]
"""The archives of each variant, by its name: one, or of a multi-model variant any number."""

Plans = Mapping[str, tuple[ArchivePlan, ...]]


def plan_variant_archives(spec: EndpointSpec, output: Path) -> Plans:
    """Check that the archives of all variants can be made; nothing is written.

    Args:
        spec: the endpoint.
        output: the folder that will take them.

    Raises:
        RepositoryError: a release is missing or damaged, or a container would refuse it.
        EngineError: a release was compiled for something else than an image of SageMaker.
        UsageError: the models of a variant do not fit together.
    """
    repository = ModelRepository(Path(spec.repository))
    plans = {}
    for variant in spec.all_variants:
        try:
            plans[variant.name] = tuple(plan_archives(repository, _request(variant), output))
        except PlansmithError as error:
            raise error.located(model=f"variant {variant.name}") from error
    return plans


def planned_archives(plans: Plans) -> VariantArchives:
    """The archives as they will be, without digests."""
    return {name: tuple(plan.archive for plan in own) for name, own in plans.items()}


def write_variant_archives(plans: Plans, progress: Callable[[int], None] = lambda _: None) -> VariantArchives:
    """Write the archives of all variants, unless they are there.

    Args:
        plans: of `plan_variant_archives`.
        progress: told how many more bytes were read.

    Raises:
        RepositoryError: a file of a release is damaged; the disk is full or not writable.
    """
    return {name: tuple(write_archive(plan, progress) for plan in own) for name, own in plans.items()}


def _request(variant: VariantSpec) -> PackageRequest:
    return PackageRequest(
        releases=variant.models,
        multi_model=variant.multi_model,
        copies=variant.copies,
        default_model="" if variant.multi_model else variant.environment.default_model,
        target=_target(variant),
    )


def _target(variant: VariantSpec) -> Target | None:
    """The image that serves the variant, where the spec names its version; None for that of the releases."""
    if variant.image.version is None:
        return None
    return container_target(variant.image.version, "gpu" if known_instance(variant.instance_type).gpus else "cpu")
