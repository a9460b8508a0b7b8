"""Serving configuration: engine, precision, dynamic batching, instances and threads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plansmith.errors import UsageError
from plansmith.records.model import EngineKind, Precision, Record

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


THREADS_PARAMETER = "intra_op_thread_count"
"""Parameter of Triton's ONNX Runtime backend: threads with which an instance computes one operator."""

Preference = Literal["none", "full", "half"]
"""Preferred batch sizes: none, the largest batch, or that and half of it."""

PREFERENCES: tuple[Preference, ...] = ("none", "full", "half")
QUEUE_DELAYS = (0, 100, 1000, 5000)
"""Tried by default, in microseconds."""

AXES = ("build", "max_batch_size", "preference", "queue_delay", "instances_and_threads")
ORDERED_AXES = {"max_batch_size", "queue_delay"}
"""Axes whose choices ascend; on the others, neighbours are not more alike than any two choices."""

Point = tuple[int, ...]
"""The number of the choice on each of `AXES`."""

_MAX_GPU_INSTANCES = 4
_MAX_CPU_INSTANCES = 8


class Build(Record):
    """Build: the engine and precision that a configuration requires."""

    engine: EngineKind
    precision: Precision

    @property
    def label(self) -> str:
        """A label such as "onnxruntime fp32"."""
        return f"{self.engine} {self.precision}"


class Configuration(Record):
    """Serving configuration of a model.

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
        """The configuration in one line."""
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
        """The configuration without ineffective settings, such as the queue delay of a batcher of single samples."""
        if self.max_batch_size > 1:
            preferred = self.preferred_batch_sizes if self.queue_delay_microseconds is not None else ()
            return self.model_copy(update={"preferred_batch_sizes": preferred})
        return self.model_copy(update={"queue_delay_microseconds": None, "preferred_batch_sizes": ()})

    def apply_to(self, config: pb.ModelConfig) -> None:
        """Apply this configuration to a config.pbtxt of the same build; all other settings are kept."""
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
        """Return the spec keys that turn another configuration into this one."""
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
        """The value for `triton.dynamic_batching` in a spec."""
        if self.queue_delay_microseconds is None:
            return False
        preferred = {"preferred_batch_size": list(self.preferred_batch_sizes)} if self.preferred_batch_sizes else {}
        return {"max_queue_delay_microseconds": self.queue_delay_microseconds, **preferred}


def read_configuration(config: pb.ModelConfig, build: Build) -> Configuration:
    """Read the configuration from a config.pbtxt.

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
    """The threads of an instance; like Triton, read the number at the start of the text."""
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


class SearchSpace(Record):
    """Search space: the choices on each axis, ascending.

    Attributes:
        builds: engines and precisions that can be served.
        max_batch_sizes: (0,) for a model that is not batched.
        preferences: of batch sizes.
        queue_delays: of the dynamic batcher, in microseconds.
        instances_and_threads: instances, and threads of each (ONNX Runtime on a CPU); 0 threads: its own choice.
    """

    builds: tuple[Build, ...]
    max_batch_sizes: tuple[int, ...]
    preferences: tuple[Preference, ...] = ("none",)
    queue_delays: tuple[int, ...] = (100,)
    instances_and_threads: tuple[tuple[int, int], ...] = ((1, 0),)

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of choices on each of `AXES`."""
        axes = (self.builds, self.max_batch_sizes, self.preferences, self.queue_delays, self.instances_and_threads)
        return tuple(map(len, axes))

    def configuration_at(self, point: Point) -> Configuration:
        """Return the configuration at a point; some points share one."""
        build, size, preference, delay, instances = point
        largest = self.max_batch_sizes[size]
        count, threads = self.instances_and_threads[instances]
        return Configuration(
            build=self.builds[build],
            max_batch_size=largest,
            queue_delay_microseconds=self.queue_delays[delay] if largest > 1 else None,
            preferred_batch_sizes=preferred_sizes(self.preferences[preference], largest),
            instances=count,
            threads=threads if self.builds[build].engine is EngineKind.ONNXRUNTIME else 0,
        ).normalized

    @property
    def points(self) -> Mapping[Configuration, Point]:
        """Each distinct configuration with its first point, in a fixed order."""
        return _points(self)

    @property
    def size(self) -> int:
        """The number of configurations: the runs of a full grid search."""
        return len(self.points)

    def nearest_point(self, configuration: Configuration) -> Point:
        """Return the point of a configuration, or of the most similar one in the space."""
        if configuration in self.points:
            return self.points[configuration]
        return min(self.points.items(), key=lambda item: _distance(item[0], configuration))[1]


@lru_cache(maxsize=16)
def _points(space: SearchSpace) -> Mapping[Configuration, Point]:
    points: dict[Configuration, Point] = {}
    for point in product(*map(range, space.choices)):
        points.setdefault(space.configuration_at(point), point)
    return MappingProxyType(points)


class SpaceOptions(Record):
    """User restrictions of the search space; empty for the default choices."""

    max_batch_sizes: tuple[int, ...] = ()
    preferences: tuple[Preference, ...] = ()
    queue_delays: tuple[int, ...] = ()
    instances: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()

    def require_sizes(self, largest: int) -> None:
        """Check the batch sizes against the model's largest batch; 0 if it does not batch.

        Raises:
            UsageError: one is larger.
        """
        larger = [size for size in self.max_batch_sizes if size > largest]
        if larger:
            limit = f"takes batches of up to {largest}" if largest else "takes no batches"
            raise UsageError(
                f"--max-batch-sizes has {', '.join(map(str, larger))}, and the model {limit}",
                remedy=f"choose {largest} or less, or larger shapes in the spec" if largest else "leave it out",
            )


def make_space(
    largest_batches: Mapping[Build, int],
    current: Configuration,
    options: SpaceOptions,
    *,
    cpu_cores: int | None,
    min_batch_size: int = 1,
) -> SearchSpace:
    """Return the search space of the compiled builds; it includes the current configuration's values.

    Args:
        largest_batches: by build, the largest batch that it takes; 0 where it takes none.
        current: how the model is served now.
        options: restrictions.
        cpu_cores: that the instances share; None where they run on GPUs.
        min_batch_size: samples of a request; smaller largest batches would refuse it.

    Raises:
        UsageError: a batch size that the model does not take.
    """
    largest = min(largest_batches.values())
    options.require_sizes(largest)
    has_threads = cpu_cores is not None and any(build.engine is EngineKind.ONNXRUNTIME for build in largest_batches)
    sizes = options.max_batch_sizes or (*powers_of_two(largest), current.max_batch_size)
    delays = options.queue_delays or (*QUEUE_DELAYS, current.queue_delay_microseconds or 0)
    fitting = tuple(sorted({size for size in sizes if min_batch_size <= size <= largest})) or (largest,)
    return SearchSpace(
        builds=tuple(largest_batches),
        max_batch_sizes=fitting if largest else (0,),
        preferences=options.preferences or PREFERENCES[:2],
        queue_delays=tuple(sorted(set(delays))),
        instances_and_threads=_instances_and_threads(options, current, cpu_cores, has_threads=has_threads),
    )


def _instances_and_threads(
    options: SpaceOptions, current: Configuration, cpu_cores: int | None, *, has_threads: bool
) -> tuple[tuple[int, int], ...]:
    cores = _MAX_GPU_INSTANCES if cpu_cores is None else min(cpu_cores, _MAX_CPU_INSTANCES)
    default = instances_within(cores, has_threads=has_threads)
    if not (options.instances or options.threads):
        return tuple(sorted({*default, (current.instances, current.threads)}))
    instances = options.instances or tuple(sorted({count for count, _ in default}))
    threads = (options.threads if has_threads else ()) or tuple(sorted({number for _, number in default}))
    chosen = [
        (count, number)
        for count in sorted(instances)
        for number in sorted(threads)
        if cpu_cores is None or options.threads or count * number <= cpu_cores
    ]
    return tuple(chosen or [(count, 1) for count in sorted(instances)])


def instances_within(cores: int, *, has_threads: bool) -> tuple[tuple[int, int], ...]:
    """Return powers of two of instances and threads within a number of cores; 0 threads if not configurable."""
    numbers = powers_of_two(cores)
    if not has_threads:
        return tuple((count, 0) for count in numbers)
    return tuple((count, threads) for count in numbers for threads in numbers if count * threads <= cores)


def preferred_sizes(preference: Preference, largest: int) -> tuple[int, ...]:
    """Return the preferred batch sizes for a largest batch."""
    if preference == "none" or largest <= 1:
        return ()
    return (largest // 2, largest) if preference == "half" and largest > 3 else (largest,)


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Return the powers of two up to the limit, and the limit itself."""
    powers = [1 << exponent for exponent in range(max(limit, 1).bit_length()) if 1 << exponent <= limit]
    return tuple(sorted({*powers, max(limit, 1)}))


def similar_of_other_builds(space: SearchSpace, current: Configuration) -> Sequence[Configuration]:
    """Return, for each other build, the configuration most similar to the current one."""
    point = space.nearest_point(current)
    similar = [space.configuration_at((build, *point[1:])) for build in range(len(space.builds))]
    return [configuration for configuration in similar if configuration.build != current.build]


def _distance(candidate: Configuration, configuration: Configuration) -> tuple[int, float]:
    names = ("build", "instances", "threads", "preferred_batch_sizes", "queue_delay_microseconds")
    differences = sum(getattr(candidate, name) != getattr(configuration, name) for name in names)
    return differences, abs(candidate.max_batch_size - configuration.max_batch_size)
