"""What a compile brings to the stores that its spec names, after its release stands in the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError
from plansmith.records.destination import Publication
from plansmith.records.fingerprint import Fingerprint
from plansmith.records.release import PublishedVersion
from plansmith.steps.runner import StageRunner
from plansmith.stores.transfer.delivery import Delivery, Outgoing
from plansmith.stores.transfer.publication import Terms
from plansmith.triton.repository.repository import ModelRepository


class Deliveries:
    """The destinations of a spec.

    Args:
        spec: names them.
        relative_to: the folder that relative ones start from.
        repository: holds the releases.
        stages: the compile's steps.

    Raises:
        RepositoryError: a destination overlaps the repository, or the folder that compiles work in.
    """

    def __init__(self, spec: ModelSpec, *, relative_to: Path, repository: ModelRepository, stages: StageRunner) -> None:
        apart = (repository.root, repository.store, Path(spec.artifacts).absolute())
        self._spec = spec
        self._repository = repository
        self._stages = stages
        self._terms = Terms(allow_interface_change=spec.allow_interface_change, force=spec.force)
        self._deliveries = [Delivery(one, relative_to=relative_to, apart=apart) for one in spec.publish]

    @property
    def places(self) -> list[str]:
        """Where releases go, as a person may read it."""
        return [delivery.place for delivery in self._deliveries]

    def require_open(self) -> None:
        """See that each destination can be asked, and takes releases for this target; nothing is written.

        Raises:
            PlansmithError: of the first that cannot, or does not.
        """
        for delivery in self._deliveries:
            delivery.require_ours(self._spec.target)

    def plan(self) -> tuple[Publication, ...]:
        """What would come of the release that the compile found; nothing where it is not made yet.

        Raises:
            PlansmithError: a destination cannot be asked, or refuses it.
        """
        self.require_open()
        found = self._stages.results.get("publish")
        if not isinstance(found, PublishedVersion):
            return ()
        release = self._outgoing(found)
        return tuple(delivery.plan(release, self._terms) for delivery in self._deliveries)

    def deliver(
        self, published: PublishedVersion, told: Callable[[PublishedVersion], None] = lambda _: None
    ) -> PublishedVersion:
        """Bring a release to each destination in turn; what one has already is found there.

        Args:
            published: the release.
            told: of it with its publications so far, after each.

        Raises:
            PlansmithError: of the first that fails. The release stands, and the same compile goes on there.
        """
        self._stages.results["publish"] = published
        for delivery in self._deliveries:
            made = self._delivered(published, delivery)
            published = published.model_copy(update={"publications": (*published.publications, made)})
            self._stages.results["publish"] = published
            told(published)
        return published

    def note(self, published: PublishedVersion, basis: Fingerprint) -> None:
        """Note in each destination what the release was made from.

        One that cannot be written is told: the release stands there, and who knows it only from there builds it again.
        """
        for delivery, made in zip(self._deliveries, published.publications, strict=True):
            try:
                delivery.note(made.model, made.digest, basis)
            except (PlansmithError, OSError) as error:
                said = error.message if isinstance(error, PlansmithError) else str(error)
                words = f"what version {made.version} of {made.model} was made from could not be noted in {made.place}"
                self._stages.notice(f"{words}: {said}")

    def _delivered(self, published: PublishedVersion, delivery: Delivery) -> Publication:
        try:
            made = delivery.publish(self._outgoing(published), self._terms, self._stages.progress)
        except PlansmithError as error:
            stands = f"version {published.version} of {published.name} stands in {published.repository}"
            error.message = f"{error.message}\n{stands}, and was not published to {delivery.place}"
            error.remedy = f"{error.remedy}; then run the same command again: nothing is built again"
            raise
        if made.caution:
            self._stages.notice(f"{made.place}: {made.caution}")
        for alias, number in made.elsewhere.items():
            self._stages.notice(
                f"{alias} of {made.model} in {made.place} stands for version {number}, and was left so: version"
                f" {made.version}, which was there already, is this release"
            )
        return made

    def _outgoing(self, published: PublishedVersion) -> Outgoing:
        manifest = self._repository.manifest(published.name, published.version)
        return Outgoing(Path(published.release), manifest, self._stages.digester)
