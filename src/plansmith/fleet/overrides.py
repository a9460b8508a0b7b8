"""Values for every model of a fleet, as fields of a spec: what a command line gives by options, and a flow as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from plansmith.config.spec import ModelSpec


def _without_defaults(schema: dict[str, Any]) -> None:
    """A form that fills in a default would put it over every spec."""
    for field in schema["properties"].values():
        field.pop("default", None)


class SpecOverrides(ModelSpec):
    """What wins over the specs of a fleet; only what is given counts, and nothing has to be.

    `target`: a list of them makes a model for each, in a repository of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_without_defaults)

    source: str = Field(default="", description=str(ModelSpec.model_fields["source"].description))
    target: str | tuple[str, ...] = Field(  # type: ignore[assignment]
        default="", description="Serving runtimes that releases are made for."
    )

    @property
    def given(self) -> dict[str, Any]:
        """The values that were given, as `loader.read_specs` takes them."""
        return self.model_dump(mode="json", exclude_unset=True)


AS_SPECIFIED = SpecOverrides()
"""Nothing wins."""
