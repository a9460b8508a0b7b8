"""`models:/name@alias`, `models:/name/3` and `models:/name/latest`: a version of a registered model, as typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from plansmith.errors import UsageError

LATEST = "latest"

_SCHEME = "models:/"
_FORMS = "write mlflow:models:/NAME@ALIAS, mlflow:models:/NAME/VERSION or mlflow:models:/NAME/latest"
_VERSION = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_ALIAS = re.compile(r"[\w-]{1,255}", re.ASCII)
_LONGEST_NAME = 255


@dataclass(frozen=True)
class RegisteredName:
    """A registered model and which of its versions is wanted: `@alias`, a number, or `latest`."""

    name: str
    wanted: str

    @classmethod
    def of(cls, model: str, wanted: str) -> Self:
        """From the parts that a source is split into: models:/name, and which version."""
        return cls(model.removeprefix(_SCHEME), wanted)

    @property
    def model(self) -> str:
        """The model without a version."""
        return f"{_SCHEME}{self.name}"

    @property
    def alias(self) -> str:
        """The alias that is wanted; empty where none is."""
        return self.wanted[1:] if self.wanted.startswith("@") else ""

    @property
    def is_fixed(self) -> bool:
        """Whether it names one version for good."""
        return not self.alias and self.wanted != LATEST

    def __str__(self) -> str:
        return f"{self.model}{self.wanted}" if self.alias else f"{self.model}/{self.wanted}"


def read_registered(location: str) -> RegisteredName:
    """Read what follows `mlflow:`, in the forms of MLflow's own clients.

    Raises:
        UsageError: another form.
    """
    if not location.startswith(_SCHEME):
        raise _no_model(location, f"{location!r} is no registered model", _FORMS)
    name, slash, version = location.removeprefix(_SCHEME).strip("/").partition("/")
    alias = ""
    if not slash:
        name, at, alias = name.rpartition("@")
        if not at:
            raise _no_model(location, f"{location} does not say which version is meant", _FORMS)
        if not _ALIAS.fullmatch(alias):
            raise _no_model(location, f"{alias!r} cannot be an alias of MLflow", "an alias has A-Z a-z 0-9 _ -")
    elif version.lower() == LATEST:
        version = LATEST
    elif not _VERSION.fullmatch(version):
        raise _no_model(
            location,
            f"{version!r} is no version: they are numbers, and MLflow has given up stages",
            f"set an alias on the version that is meant; {_FORMS}",
        )
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable() or name in {".", ".."} or ":" in name:
        raise _no_model(location, f"{name!r} cannot be the name of a registered model", _FORMS)
    return RegisteredName(name, f"@{alias}" if alias else version)


def _no_model(location: str, message: str, remedy: str) -> UsageError:
    if location.startswith("runs:/"):
        remedy = f"register the run's model (mlflow.register_model), then {remedy}"
    return UsageError(message, remedy=remedy)
