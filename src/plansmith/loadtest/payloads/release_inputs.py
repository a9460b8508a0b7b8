"""Requests from the real inputs that a release keeps from its compile, at mixed sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data.reference import StoredCases, read_feed
from plansmith.errors import UsageError
from plansmith.loadtest.payloads.sizes import SizeMix
from plansmith.pipelines.cases import read_case as read_raw_case
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import BATCH, AxisRange, Case, InputRange
from plansmith.records.pipeline import RawCase
from plansmith.records.release import CONFIG_FILE, Manifest, Package
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.config.plan_config import instances_take
from plansmith.triton.served_inputs import inputs_as_served, is_accepted
from plansmith.validation.profile_inputs import profile_cases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_MAX_ATTEMPTS = 200
"""Sizes that no optimization profile takes, one after the other, before the search ends."""


@dataclass(frozen=True)
class ReleaseInputs:
    """The inputs that a release keeps.

    Args:
        manifest: of the release.
        release: its folder.
        package: as it is served.
    """

    manifest: Manifest
    release: Path
    package: Package

    @property
    def description(self) -> str:
        """Where they come from."""
        name = f"{self.manifest.name}@{self.manifest.version}"
        if self._takes_raw:
            return f"the requests that {name} keeps, in mixed batches"
        return f"the inputs that {name} keeps ({self.manifest.onnx.reference.data}), at mixed sizes"

    @property
    def is_random(self) -> bool:
        """Whether the compile drew them at random, as nothing described the model's inputs."""
        return not self._takes_raw and self.manifest.onnx.reference.guessed

    def exist(self) -> bool:
        """Whether the release keeps any."""
        return bool(self._raw_cases if self._takes_raw else self._cases)

    def requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Requests of mixed sizes, without end.

        Raises:
            UsageError: no optimization profile takes the batch sizes.
        """
        return self._raw_requests(mix) if self._takes_raw else self._sized_requests(mix)

    @property
    def _takes_raw(self) -> bool:
        """Whether clients send texts, images or the like, and not the model's own inputs."""
        return self.manifest.pipeline is not None or self.manifest.script is not None

    @cached_property
    def _raw_cases(self) -> list[RawCase]:
        manifest = self.manifest
        cases: Sequence[RawCase] = ()
        if manifest.script is not None:
            cases = [case for case in manifest.script.cases if case.name not in manifest.script.refused]
        elif manifest.pipeline is not None:
            cases = manifest.pipeline.cases
        return [case for case in cases if (self.release / case.file).is_file()]

    @cached_property
    def _cases(self) -> list[Case]:
        return [case for case in self.manifest.onnx.reference.cases if (self.release / case.file).is_file()]

    def _raw_requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Samples of all requests, recombined into batches."""
        import numpy as np

        generator, largest = mix.generator(), self.package.max_batch_size
        requests = [read_raw_case(self.release / case.file)[0] for case in self._raw_cases]
        if not largest:
            while True:
                yield generator.choice(requests)
        form = _sample_shapes(requests[0])
        alike = [request for request in requests if _sample_shapes(request) == form]
        samples = {name: np.concatenate([request[name] for request in alike]) for name in alike[0]}
        count = len(next(iter(samples.values())))
        while True:
            size = mix.draw_batch(generator, AxisRange(min=1, opt=1, max=largest))
            chosen = generator.sample(range(count), size) if size <= count else generator.choices(range(count), k=size)
            yield {name: array[chosen] for name, array in samples.items()}

    def _sized_requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Inputs that are cut or repeated to sizes that the release takes."""
        misses = 0
        axes = dict(self.manifest.onnx.axes)
        if self.package.max_batch_size:
            batch = axes.get(BATCH, AxisRange(min=1, opt=1, max=1))
            axes[BATCH] = AxisRange(min=1, opt=1, max=min(batch.max, self.package.max_batch_size))
        for sizes in mix.draw(axes):
            own = self._sized(sizes, mix)
            request = inputs_as_served(own, self.package)
            if self._is_taken(request, own):
                misses = 0
                yield request
                continue
            misses += 1
            if misses > _MAX_ATTEMPTS:
                raise UsageError(
                    f"no batch and sizes were found that all instances of {self.manifest.name} take",
                    remedy="choose other batch sizes (--batch), or give inputs of your own (--data)",
                )

    def _sized(self, sizes: Mapping[str, int], mix: SizeMix) -> Arrays:
        """Inputs of these sizes, samples in another order each time; inputs that hold a shape stay as they are."""
        import numpy as np

        build, component = self.manifest.engine.build, self.manifest.onnx.components["model"]
        if build is not None and any(profile.values for profile in build.profiles):
            return read_feed(self._cases[sum(sizes.values()) % len(self._cases)], self.release)
        known = {**self._cases[0].axes, **sizes}
        shapes = {
            tensor.name: tuple(known[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
            for tensor in component.inputs
        }
        ranges = {name: InputRange(min=shape, opt=shape, max=shape) for name, shape in shapes.items()}
        stored, mask = StoredCases(self._cases, self.release), self.manifest.onnx.mask_input
        profile = OptimizationProfile(name="load", shapes=ranges)
        arrays = next(profile_cases([profile], stored, component, mask, corners=["opt"])).feed
        batch = sizes.get(BATCH, 0)
        order = np.random.default_rng([mix.seed, *sizes.values()]).permutation(batch)
        batched = {tensor.name for tensor in component.inputs if tensor.dims[:1] == (BATCH,)}
        return {name: array[order] if name in batched and batch else array for name, array in arrays.items()}

    def _is_taken(self, request: Arrays, own: Arrays) -> bool:
        """Whether the release takes a request; `own` has the dims of the model itself."""
        build = self.manifest.engine.build
        if build is None or not is_accepted(request, self.package):
            return is_accepted(request, self.package)
        kept = {name: array for name, array in own.items() if name not in self.package.reshaped}
        config = parse_config((self.release / CONFIG_FILE).read_text())
        return instances_take(config, build.profiles, kept)


def _sample_shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in arrays.items()}
