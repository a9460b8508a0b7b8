"""A serving configuration: engine, precision, dynamic batching, instances and threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import Field

from plansmith.errors import UsageError
from plansmith.records.model import EngineKind, Precision, Record

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

THREADS_PARAMETER = "intra_op_thread_count"
"""Parameter of Triton's ONNX Runtime backend: threads with which an instance computes one operator."""


class Build(Record):
    """What has to be compiled for a configuration: an engine in a precision."""

    engine: EngineKind
    precision: Precision

    @property
    def label(self) -> str:
        """Such as "onnxruntime fp32"."""
        return f"{self.engine} {self.precision}"


class Configuration(Record):
    """A way to serve a model.

    Attributes:
        build: engine and precision.
        max_batch_size: the largest batch; 0 for a model that Triton does not batch.
        queue_delay_microseconds: longest wait of the dynamic batcher for a fuller batch; None without dynamic batching.
        preferred_batch_sizes: batches that are executed without waiting, ascending.
        instances: on a CPU in all, otherwise on each GPU.
        threads: of an instance of ONNX Runtime on a CPU; 0 leaves the number to ONNX Runtime.
    """

    build: Build
    max_batch_size: int = Field(ge=0)
    queue_delay_microseconds: int | None = Field(default=None, ge=0)
    preferred_batch_sizes: tuple[int, ...] = ()
    instances: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0)

    @property
    def label(self) -> str:
        """All of it in one line."""
        batching = "no batching"
        if self.max_batch_size > 1:
            batching = f"batch {self.max_batch_size}"
            if self.queue_delay_microseconds is None:
                batching += ", no dynamic batching"
            else:
                batching += f", delay {self.queue_delay_microseconds} µs"
            if self.preferred_batch_sizes:
                batching += f", preferred {'+'.join(map(str, self.preferred_batch_sizes))}"
        instances = f"{self.instances} instance{'' if self.instances == 1 else 's'}"
        threads = f" of {self.threads} thread{'' if self.threads == 1 else 's'}" if self.threads else ""
        return f"{self.build.label}, {batching}, {instances}{threads}"

    @property
    def normalized(self) -> Configuration:
        """The same without settings that have no effect, such as the delay of a batcher of single samples."""
        if self.max_batch_size > 1:
            preferred = self.preferred_batch_sizes if self.queue_delay_microseconds is not None else ()
            return self.model_copy(update={"preferred_batch_sizes": preferred})
        return self.model_copy(update={"queue_delay_microseconds": None, "preferred_batch_sizes": ()})

    def apply_to(self, config: pb.ModelConfig) -> None:
        """Change a config.pbtxt of the same build to this configuration; all other settings stay."""
        current = read_configuration(config, self.build)
        config.max_batch_size = self.max_batch_size
        if self.queue_delay_microseconds is None:
            config.ClearField("dynamic_batching")
        else:
            config.dynamic_batching.max_queue_delay_microseconds = self.queue_delay_microseconds
            config.dynamic_batching.preferred_batch_size[:] = self.preferred_batch_sizes
        if self.instances != current.instances:
            del config.instance_group[1:]
            config.instance_group[0].count = self.instances
        if self.threads != current.threads:
            if self.threads:
                config.parameters[THREADS_PARAMETER].string_value = str(self.threads)
            else:
                del config.parameters[THREADS_PARAMETER]

    def spec_changes(self, current: Configuration) -> dict[str, Any]:
        """The keys of a spec that turn another configuration into this one."""
        changes: dict[str, Any] = {}
        triton: dict[str, Any] = {}
        for key in ("engine", "precision"):
            if getattr(self.build, key) != getattr(current.build, key):
                changes[key] = str(getattr(self.build, key))
        if self.max_batch_size != current.max_batch_size:
            triton["max_batch_size"] = self.max_batch_size
        if self._batching != current._batching or "engine" in changes:
            triton["dynamic_batching"] = self._batching
        if self.instances != current.instances:
            triton["instance_group"] = [{"count": self.instances}]
        if self.threads != current.threads:
            triton["parameters"] = {THREADS_PARAMETER: str(self.threads) if self.threads else None}
        return changes | ({"triton": triton} if triton else {})

    @property
    def _batching(self) -> dict[str, Any] | bool:
        """As `triton.dynamic_batching` of a spec has it."""
        if self.queue_delay_microseconds is None:
            return False
        preferred = {"preferred_batch_size": list(self.preferred_batch_sizes)} if self.preferred_batch_sizes else {}
        return {"max_queue_delay_microseconds": self.queue_delay_microseconds, **preferred}


def read_configuration(config: pb.ModelConfig, build: Build) -> Configuration:
    """The configuration of a config.pbtxt.

    Raises:
        UsageError: it has a sequence batcher, or its number of threads is no number.
    """
    if config.HasField("sequence_batching"):
        raise UsageError(
            f"{config.name} has a sequence batcher; only the dynamic batcher can be tuned",
            remedy="tune a model without state",
        )
    batching = config.dynamic_batching if config.HasField("dynamic_batching") else None
    return Configuration(
        build=build,
        max_batch_size=config.max_batch_size,
        queue_delay_microseconds=None if batching is None else int(batching.max_queue_delay_microseconds),
        preferred_batch_sizes=() if batching is None else tuple(sorted(batching.preferred_batch_size)),
        instances=max(1, sum(group.count for group in config.instance_group)),
        threads=_threads(config),
    )


def _threads(config: pb.ModelConfig) -> int:
    """The threads of an instance; Triton reads the number at the beginning of the text."""
    if THREADS_PARAMETER not in config.parameters:
        return 0
    text = config.parameters[THREADS_PARAMETER].string_value
    number = re.match(r"\s*[+-]?\d{1,19}(?!\d)", text)
    if number is None:
        raise UsageError(
            f"{THREADS_PARAMETER} of {config.name} is {text!r}, which is no number",
            remedy="write a whole number, or leave it out",
        )
    return max(0, int(number[0]))
