"""Random invocations of more models than fit: the least recently used one is unloaded for one that is not loaded.

That is how SageMaker's multi-model endpoints do it: "it unloads unused models from that instance's container to ensure
that there is enough memory to load the model"
(docs.aws.amazon.com/sagemaker/latest/dg/how-multi-mode-endpoints-work.html).
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from plansmith.capacity.folders import DiskFull
from plansmith.capacity.loader import CopyLoader
from plansmith.capacity.results import Eviction, spread_of
from plansmith.errors import PlansmithError, UsageError, in_one_line

_ZIPF = re.compile(r"zipf(?::(\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Popularity:
    """How often each model is invoked.

    Attributes:
        exponent: of Zipf's law, by which the model of rank r is invoked in proportion to 1/r^exponent; 0 is uniform.
    """

    exponent: float = 0.0

    @classmethod
    def read(cls, text: str) -> Popularity:
        """The popularity that a text names: uniform, zipf or zipf:1.2.

        Raises:
            UsageError: it names none.
        """
        match = _ZIPF.fullmatch(text)
        if match is None and text != "uniform":
            raise UsageError(f"--popularity {text!r} is unknown", remedy="choose uniform, zipf or zipf:1.2")
        return cls(float(match[1] or 1) if match else 0.0)

    def __str__(self) -> str:
        return f"zipf:{self.exponent:g}" if self.exponent else "uniform"

    def sequence(self, models: int, count: int, seed: int) -> list[int]:
        """The models to invoke, numbered from 1; which are popular is drawn, too."""
        draw = random.Random(seed)  # noqa: S311 - a load that can be repeated, and no secret
        order = list(range(1, models + 1))
        draw.shuffle(order)
        weights = list(itertools.accumulate(rank**-self.exponent for rank in range(1, models + 1)))
        return draw.choices(order, cum_weights=weights, k=count)


@dataclass
class EvictionRun:
    """Random invocations under way.

    Attributes:
        loader: has some copies loaded, as many as fit.
        popularity: of the models.
    """

    loader: CopyLoader
    popularity: Popularity
    hit_ms: list[float] = field(default_factory=list)
    miss_ms: list[float] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.loader.plan
        self.slots = len(self.loader.loaded)
        self.models = plan.models or 2 * self.slots
        self.sequence: Sequence[int] = self.popularity.sequence(self.models, plan.invocations, plan.seed)

    def run(self) -> None:
        """Invoke one model after another; errors are counted.

        Raises:
            ServerLost: the server ended, or cannot be asked.
        """
        try:
            for done, number in enumerate(self.sequence, 1):
                try:
                    self._invoke(number)
                except (PlansmithError, DiskFull) as error:
                    self.errors.append(in_one_line(error.message if isinstance(error, PlansmithError) else str(error)))
                    if number not in self.loader.loaded:
                        self.loader.discard(number)
                share = done / len(self.sequence)
                self.loader.progress.activity(f"invocation {done} of {len(self.sequence)}, {self.hits} hits", share)
        finally:
            self.loader.eviction = self.result()

    def result(self) -> Eviction:
        """What was measured so far."""
        return Eviction(
            models=self.models,
            slots=self.slots,
            popularity=str(self.popularity),
            seed=self.loader.plan.seed,
            hits=self.hits,
            misses=self.misses,
            evictions=self.evictions,
            hit_ms=spread_of(self.hit_ms),
            miss_ms=spread_of(self.miss_ms),
            errors=len(self.errors),
            first_error=self.errors[0] if self.errors else "",
        )

    def _invoke(self, number: int) -> None:
        loader = self.loader
        if number in loader.loaded:
            self.hits += 1
            self.hit_ms.append(loader.invoke(number))
            return
        self.misses += 1
        loader.write(number)  # SageMaker has fetched it by then: that is not counted
        began = time.monotonic()
        while loader.loaded and (len(loader.loaded) >= self.slots or loader.free_memory_problem(number)):
            self._evict()
        loader.load(number)
        loader.invoke(number)
        self.miss_ms.append(round((time.monotonic() - began) * 1000, 1))

    def _evict(self) -> None:
        oldest = self.loader.loaded[0]
        self.loader.unload(oldest)
        self.loader.remove(oldest)
        self.evictions += 1
