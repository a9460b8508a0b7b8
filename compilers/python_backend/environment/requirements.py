"""What requirements bring along on another Python: the closure of distributions, each in one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name

from plansmith.compilers.python_backend.environment.platform import Platform
from plansmith.errors import EnvironmentFault

Needs = Callable[[NormalizedName, SpecifierSet], Iterable[str]]
"""The requirements of a distribution of such a version, as its metadata has them; none where none is known."""


def read_requirements(text: str) -> tuple[Requirement, ...]:
    """The lines of a requirements.txt, sorted.

    Raises:
        EnvironmentFault: a line is none, or names an option, a file or an address.
    """
    found = []
    for written in text.splitlines():
        line = written.partition("#")[0].strip()
        if not line:
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise _unusable(written) from error
        if requirement.url:
            raise _unusable(written)
        found.append(requirement)
    return tuple(sorted(found, key=str))


def is_needed(requirement: Requirement, platform: Platform, extras: Iterable[str] = ()) -> bool:
    """Whether a requirement counts on a platform, for a distribution with these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate(platform.markers() | {"extra": extra}) for extra in ("", *extras))


class Closure:
    """All that requirements bring along, as far as it is known.

    Args:
        requirements: what is asked for.
        platform: where.
        needs: knows the distributions that there are.

    Attributes:
        specifiers: the versions that all who need a distribution agree on, by its name.
        wanted_by: who needs it first.
    """

    def __init__(self, requirements: Iterable[Requirement], platform: Platform, needs: Needs) -> None:
        self.specifiers: dict[NormalizedName, SpecifierSet] = {}
        self.wanted_by: dict[NormalizedName, str] = {}
        self._platform = platform
        self._needs = needs
        self._extras: dict[NormalizedName, frozenset[str]] = {}
        for requirement in requirements:
            if is_needed(requirement, platform):
                self._add(requirement, "requirements.txt")

    def _add(self, requirement: Requirement, asker: str) -> None:
        name = canonicalize_name(requirement.name)
        known = self._extras.get(name)
        extras = (known or frozenset()) | {canonicalize_name(extra) for extra in requirement.extras}
        self.specifiers[name] = self.specifiers.get(name, SpecifierSet()) & requirement.specifier
        self.wanted_by.setdefault(name, asker)
        if known == extras:
            return
        self._extras[name] = extras
        for line in self._needs(name, self.specifiers[name]):
            needed = Requirement(line)
            if is_needed(needed, self._platform, sorted(extras)):
                self._add(needed, name)


def installed_versions(requirements: Iterable[Requirement], platform: Platform) -> dict[str, str]:
    """The versions that distributions which requirements bring along have here, where these are right there, too."""
    closure = Closure(requirements, platform, _installed_needs)
    found = {name: _installed(name) for name in closure.specifiers}
    return {
        name: number for name, number in sorted(found.items()) if number and _fits(number, closure.specifiers[name])
    }


def require_agreement(closure: Closure, versions: Mapping[NormalizedName, str]) -> None:
    """See that every distribution has a version that all agree on.

    Raises:
        EnvironmentFault: one has not.
    """
    for name, specifier in closure.specifiers.items():
        if not _fits(versions[name], specifier):
            raise EnvironmentFault(
                f"what is asked for does not go together: {name} is {versions[name]}, and has to be {specifier}",
                remedy="change the versions that requirements.txt names, or install others that agree",
            )


def _fits(number: str, specifier: SpecifierSet) -> bool:
    return specifier.contains(number, prereleases=True)


def _installed(name: str) -> str:
    """Without the local part, as in 2.15.0+cu132, which no index knows; empty where it is not installed."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


def _installed_needs(name: NormalizedName, specifier: SpecifierSet) -> list[str]:
    """Of a version that does not fit nothing follows: another one may need other distributions."""
    number = _installed(name)
    return (requires(name) or []) if number and _fits(number, specifier) else []


def _unusable(line: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"an environment cannot be packed of the requirement {line!r}",
        remedy="name distributions and their versions, as in numpy==1.26.4, or leave the environment to the image",
    )
