"""A release in another configuration, as the models that a Triton serves of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plansmith.copies.release import ModelFolder
from plansmith.errors import UsageError
from plansmith.records.model import Device
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import CONFIG_FILE
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.renamed import Content
from plansmith.tuning.builds import CompiledBuild
from plansmith.tuning.configuration import Configuration

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class StagedRelease:
    """A release in another configuration.

    Attributes:
        models: members of an ensemble or script before itself.
        measured: the name of the model itself, which of an ensemble is a member: its batches count.
    """

    models: tuple[ModelFolder, ...]
    measured: str

    @property
    def name(self) -> str:
        """Of the model that answers."""
        return self.models[-1].name


def stage_release(build: CompiledBuild, configuration: Configuration, device: Device, name: str = "") -> StagedRelease:
    """Put a release into another configuration.

    What asks the model in an ensemble takes no larger batches than the model does.

    Args:
        build: has the release.
        configuration: to serve it in.
        device: on which it is served.
        name: what to call it; as the release when empty.

    Raises:
        UsageError: the model does not take the batch size.
        RepositoryError: the release is damaged.
    """
    manifest = build.manifest
    models = build.copy(device, name)
    parts = [member.part for member in manifest.package.members]
    measured = models[parts.index(MODEL_PART) if MODEL_PART in parts else -1].name
    configs = {model.name: parse_config(model.files[CONFIG_FILE].read_text()) for model in models}
    own, config = configs[models[-1].name], configs[measured]
    largest = config.max_batch_size
    if configuration.max_batch_size > largest or (largest and not configuration.max_batch_size):
        raise UsageError(
            f"{manifest.name} was compiled for batches of up to {largest}, and cannot be served with"
            f" {configuration.max_batch_size}",
            remedy="compile it with larger shapes",
        )
    configuration.apply_to(config)
    drop_larger_batches(config)
    if config is not own and 0 < config.max_batch_size < own.max_batch_size:
        own.max_batch_size = config.max_batch_size
        drop_larger_batches(own)
    own.version_policy.latest.num_versions = 1
    return StagedRelease(tuple(_with_config(models, configs)), measured)


def drop_larger_batches(config: pb.ModelConfig) -> None:
    """Drop preferred batches and warm-up samples above the largest batch, which Triton refuses.

    Rule: ValidateModelConfig in core/src/model_config_utils.cc of Triton.
    """
    largest = config.max_batch_size
    if config.HasField("dynamic_batching"):
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size <= largest]
        config.dynamic_batching.preferred_batch_size[:] = preferred
    samples = [sample for sample in config.model_warmup if sample.batch_size <= max(largest, 1)]
    del config.model_warmup[:]
    config.model_warmup.extend(samples)


def _with_config(models: Sequence[ModelFolder], configs: dict[str, pb.ModelConfig]) -> list[ModelFolder]:
    return [
        replace(model, files={**model.files, CONFIG_FILE: Content.of(text_of(configs[model.name]).encode())})
        for model in models
    ]
