"""What Triton is shown of a model, in the order in which it must be there: its parts, then the view that names them."""

from __future__ import annotations

from pathlib import Path

from plansmith.records.release import Manifest
from plansmith.triton.repository.ensemble_members import ModelMembers
from plansmith.triton.repository.view import ModelViews


class ModelViewPublication:
    """The view of one model and its parts; those who change them hold the model's lock.

    Args:
        views: the model's.
        members: the model's.
    """

    def __init__(self, views: ModelViews, members: ModelMembers) -> None:
        self._views = views
        self._members = members

    def require_ours(self, *manifests: Manifest) -> None:
        """See that what Triton finds under the names of the model, and of the parts of releases, is ours, if anything.

        Raises:
            RepositoryError: it is a model that somebody else put there.
        """
        self._views.require_ours()
        for manifest in manifests:
            self._members.require_ours(manifest.package.members)

    def show(self, newest: Manifest, fitting: list[Manifest]) -> None:
        """Show the newest release and the versions that fit it, and take away the parts that no view names any more.

        Args:
            newest: its configuration is the view's.
            fitting: the manifests of the versions, in ascending order; all have the newest one's parts.

        Raises:
            RepositoryError: a part's name is somebody else's model's.
        """
        self._members.show(newest)
        self._views.show(newest, fitting)
        self.tidy()

    def hide(self) -> None:
        """Show nothing of the model any more, but for the parts that a Triton may still read with the view before."""
        self._views.hide()
        self.tidy()

    def tidy(self) -> None:
        """Take away the parts that no view names, such as those that a killed process left."""
        self._members.tidy(self._views.configs())

    def strays(self, newest: Manifest, fitting: list[Manifest], *, quick: bool = False) -> dict[str, Path]:
        """The files that Triton is to be shown and that are missing, or not those of the releases.

        Args:
            newest: the newest release that is shown.
            fitting: the manifests of all that are.
            quick: compare sizes, and read nothing.

        Returns:
            Where Triton reads them, by what they are called: in the view, or for those of parts, in the release.
        """
        found = self._views.strays(newest, fitting, quick=quick)
        return {name: self._views.path / name for name in found} | self._members.strays(newest, quick=quick)
