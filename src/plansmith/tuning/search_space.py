"""The search space: the choices for each setting of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Literal

from plansmith.errors import UsageError
from plansmith.records.model import EngineKind, Record
from plansmith.tuning.configuration import Build, Configuration

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


class SearchSpace(Record):
    """The choices on each axis, ascending.

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
        """How many choices each of `AXES` has."""
        axes = (self.builds, self.max_batch_sizes, self.preferences, self.queue_delays, self.instances_and_threads)
        return tuple(map(len, axes))

    def configuration_at(self, point: Point) -> Configuration:
        """The configuration of a point; some points have the same one."""
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
        """Each configuration once, in a fixed order, with its first point."""
        return _points(self)

    @property
    def size(self) -> int:
        """How many configurations there are: the runs of a full grid."""
        return len(self.points)

    def nearest_point(self, configuration: Configuration) -> Point:
        """The point of a configuration, or of the most similar one in the space."""
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
    """Choices that a person restricts; empty for the default ones."""

    max_batch_sizes: tuple[int, ...] = ()
    preferences: tuple[Preference, ...] = ()
    queue_delays: tuple[int, ...] = ()
    instances: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()

    def require_sizes(self, largest: int) -> None:
        """Check the batch sizes against the largest batch of the model; 0 where it takes none.

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
    """The space of the builds that were made; it contains the values of the current configuration.

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
    """Powers of two of instances and threads that together use at most so many cores; 0 threads without a choice."""
    numbers = powers_of_two(cores)
    if not has_threads:
        return tuple((count, 0) for count in numbers)
    return tuple((count, threads) for count in numbers for threads in numbers if count * threads <= cores)


def preferred_sizes(preference: Preference, largest: int) -> tuple[int, ...]:
    """The preferred batch sizes for a largest batch."""
    if preference == "none" or largest <= 1:
        return ()
    return (largest // 2, largest) if preference == "half" and largest > 3 else (largest,)


def powers_of_two(limit: int) -> tuple[int, ...]:
    """1, 2, 4 … and the limit itself."""
    powers = [1 << exponent for exponent in range(max(limit, 1).bit_length()) if 1 << exponent <= limit]
    return tuple(sorted({*powers, max(limit, 1)}))


def similar_of_other_builds(space: SearchSpace, current: Configuration) -> Sequence[Configuration]:
    """For each other build, the configuration most like the current one."""
    point = space.nearest_point(current)
    similar = [space.configuration_at((build, *point[1:])) for build in range(len(space.builds))]
    return [configuration for configuration in similar if configuration.build != current.build]


def _distance(candidate: Configuration, configuration: Configuration) -> tuple[int, float]:
    names = ("build", "instances", "threads", "preferred_batch_sizes", "queue_delay_microseconds")
    differences = sum(getattr(candidate, name) != getattr(configuration, name) for name in names)
    return differences, abs(candidate.max_batch_size - configuration.max_batch_size)
