"""The versions of a model in a repository: which Triton is shown, which it serves, and why others are hidden."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from plansmith.triton.repository.release import policy_of
from plansmith.triton.repository.repository import ModelRepository


@dataclass(frozen=True)
class Version:
    """One version of a model among the others.

    `made` and `verdict` are None where the manifest is damaged; `hidden` says why Triton is not shown it.
    """

    number: int
    made: str | None
    verdict: str | None
    shown: bool
    serves: bool
    hidden: str | None

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        fields = asdict(self)
        return {"version": fields.pop("number"), **fields}


def versions(repository: ModelRepository, model: str) -> list[Version]:
    """All versions of a model, ascending; Triton serves the newest that it is shown, or as the newest's policy says."""
    shown = repository.views(model).shown()
    numbers = repository.versions(model)
    leading = repository.leading(model)
    newest = repository.readable(model, leading) if leading is not None else None
    served = policy_of(newest).served(shown)
    marker = repository.marker()
    otherwise = "its store says another" if marker is not None and marker.mirrors else "the view is older"
    found = []
    for number in numbers:
        manifest = repository.readable(model, number)
        hidden = None
        if number not in shown:
            hidden = repository.why_hidden(model, number, newest) or otherwise
        found.append(
            Version(
                number=number,
                made=manifest.created if manifest else None,
                verdict=manifest.validation.verdict if manifest else None,
                shown=number in shown,
                serves=number in served,
                hidden=hidden,
            )
        )
    return found
