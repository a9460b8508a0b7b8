"""Release selection for a SageMaker archive, with a check whether SageMaker can serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plansmith.config.targets import Target, load_target
from plansmith.errors import EngineError, RepositoryError, UsageError, in_one_line
from plansmith.triton.repository.renamed import RenamedRelease
from plansmith.triton.repository.repository import ModelRepository

FLAVOUR = "sagemaker"
"""The flavour of the targets that are images of SageMaker."""

_NEWEST = "sagemaker-26.05"

_LISTED_VERSION = 1
"""The front end lists a model of many as loaded where its version 1 is ready, and asks for no other
(SageMakerMMEListModel in src/sagemaker_server.cc of github.com/triton-inference-server/server)."""


@dataclass(frozen=True)
class PackageRequest:
    """Package request: what to package, and for which kind of endpoint.

    Attributes:
        releases: MODEL or MODEL@VERSION each.
        multi_model: one archive for each release, for a multi-model endpoint.
        copies: renamed copies of each release; more than one for a multi-model endpoint only.
        default_model: the model of several in one archive that the endpoint serves; empty where there is one.
        target: the image that will serve them; that which they were compiled for when None.
    """

    releases: Sequence[str]
    multi_model: bool = False
    copies: int = 1
    default_model: str = ""
    target: Target | None = None

    def __post_init__(self) -> None:
        if self.copies > 1 and not self.multi_model:
            raise UsageError(
                "copies of a model are for a multi-model endpoint: one archive would hold them all",
                remedy="pass --multi-model too",
            )
        if self.default_model and self.multi_model:
            raise UsageError(
                "a multi-model endpoint has no default model: each request names an archive",
                remedy="leave out --default-model, or --multi-model",
            )


def select_releases(repository: ModelRepository, request: PackageRequest) -> list[tuple[RenamedRelease, ...]]:
    """Return the releases of each archive, the default model's first.

    Raises:
        RepositoryError: there is no such release, it was withdrawn, or a multi-model endpoint cannot serve it.
        EngineError: it was compiled for something else than an image of SageMaker.
        UsageError: there are two models without a default, or two versions of one.
    """
    matches = [_find(repository, text) for text in request.releases]
    releases = list({release.release: release for release in matches}.values())
    for release in releases:
        serving_target(release, request.target)
    if not request.multi_model:
        return [tuple(_default_first(releases, request.default_model))]
    for release in releases:
        _require_multi_model(release)
    return [(copy,) for release in releases for copy in _copies(release, request.copies)]


def serving_target(release: RenamedRelease, chosen: Target | None) -> Target:
    """Return the target whose SageMaker image serves a release.

    Args:
        release: the release.
        chosen: the image; that which the release was compiled for when None.

    Raises:
        EngineError: that is no image of SageMaker, or one without GPUs for a release that needs them.
    """
    compiled_for = load_target(release.manifest.target)
    target = chosen or compiled_for
    if target.flavour != FLAVOUR:
        image = f"{_NEWEST}{'' if compiled_for.device == 'gpu' else '-cpu'}"
        raise EngineError(
            f"{target.name} is no image of SageMaker"
            if chosen
            else f"{release.release} was compiled for {target.name}, which is no image of SageMaker",
            remedy=f"compile it with --target {image}; or name the image, to have it checked for that and packaged as"
            f" it is: --target {image}, or in the file of an endpoint image: {{version: '{image.split('-')[1]}'}}",
        )
    if compiled_for.device == "gpu" and target.device != "gpu":
        raise EngineError(
            f"{release.release} was compiled for {compiled_for.name}, to run on a GPU, and {target.name} has none",
            remedy=f"pass an image with GPUs, such as --target {_NEWEST}; or compile it with --target {target.name}",
        )
    return target


def _find(repository: ModelRepository, text: str) -> RenamedRelease:
    name, number = repository.find(text)
    reason = repository.withdrawals(name).reason(number)
    if reason is not None:
        others = ", ".join(f"{name}@{version_number}" for version_number in repository.standing(name))
        raise RepositoryError(
            f"{name}@{number} was withdrawn: {in_one_line(reason)}",
            remedy=f"name another version: {others}" if others else "compile the model again",
        )
    return RenamedRelease(repository.manifest(name, number), repository.release(name, number), name, number)


def _default_first(releases: Sequence[RenamedRelease], default: str) -> list[RenamedRelease]:
    names = [release.name for release in releases]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(
            f"an archive holds one version of {repeated}: its endpoint serves no other",
            remedy="name one version; or pass --multi-model, for an archive of each",
        )
    if default and default not in names:
        raise UsageError(f"--default-model {default} is none of the models", remedy=f"choose from: {', '.join(names)}")
    if not default and len(names) > 1:
        raise UsageError(
            f"there are {len(names)} models, and the endpoint of one archive serves one",
            remedy=f"pass --default-model {names[0]}; or --multi-model, for an archive of each",
        )
    return sorted(releases, key=lambda release: release.name != default)


def _require_multi_model(release: RenamedRelease) -> None:
    """Check that a multi-model endpoint can serve a release."""
    members = release.script_members()
    if members:
        raise RepositoryError(
            f"{release.release} is a script that asks {', '.join(members)}: a multi-model endpoint loads the script"
            " alone",
            remedy="leave out --multi-model; or make it an ensemble, whose members Triton loads by itself",
        )
    if release.manifest.package.decoupled:
        raise RepositoryError(
            f"{release.release} gives several answers to a request, which a multi-model endpoint does not take",
            remedy="leave out --multi-model",
        )


def _copies(release: RenamedRelease, copies: int) -> list[RenamedRelease]:
    names = [f"{release.name}-copy{number}" for number in range(1, copies + 1)] if copies > 1 else [release.name]
    return [RenamedRelease(release.manifest, release.folder, name, _LISTED_VERSION) for name in names]
