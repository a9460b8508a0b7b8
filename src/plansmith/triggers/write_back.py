"""Write-back: reports build results to the registry of the event as a few names with short texts.

All names begin with `OWN_TAGS`, so that what is written never triggers again. Each telling writes the same names, with
`NOTHING` where there is nothing to say: what an earlier build left does not stay beside what a later one says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, Protocol

from pydantic import Field

from plansmith.config.service_triggers import MlflowRegistry, Registry, SageMakerRegistry
from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.delivery import OWN_TAGS, Event
from plansmith.triggers.registries.mlflow import MlflowApi
from plansmith.triggers.registries.sagemaker import package_service

NOTHING = "none"

Verdict = Literal["published", "refused", "failed", "cancelled"]
"""It stands, was judged and not good enough, could not be made, or was ended by somebody."""

_BY_WEIGHT: tuple[Verdict, ...] = ("cancelled", "failed", "refused", "published")
_DIGEST_LENGTH = 8
_NO_LABEL = re.compile(r"[^A-Za-z0-9_.-]")

MOST_PROPERTIES = 50


class Build(Record):
    """Result of a build of a model for a target.

    `places`: where it stands; `reason`: why it does not; `run`: the address of its flow run, or its id.
    """

    model: str
    target: str
    verdict: Verdict
    reason: str = ""
    places: tuple[str, ...] = ()
    manifest_digest: str = ""
    figures: dict[str, int | float | str] = Field(default_factory=dict)
    run: str = ""


class VersionReport(Record):
    """Report of build results for a version.

    `builds`: that ended and were not told before, of each model and target the one of the youngest event; `verdict`: of
    all, also of those that were told before, empty while it may still be published or not; `is_last`: no event
    has had another version of the model published since.
    """

    event: Event
    builds: tuple[Build, ...]
    verdict: Verdict | Literal[""]
    is_last: bool


class Writer(Protocol):
    """Registry writer. Thread-safe."""

    def write(self, telling: VersionReport, still_ours: Callable[[], bool]) -> bool:
        """Write the build results to a version. Idempotent.

        Args:
            telling: what.
            still_ours: asked before each change whether to go on.

        Returns:
            False where it was not gone on with.

        Raises:
            UsageError: the registry does not take it, or has no such version.
            EnvironmentFault: the registry cannot be asked.
        """
        ...


class Form(Record):
    """A registry's format limits for names and values.

    `longest_name` and `longest_value`: in bytes of UTF-8; `foreign`: a pattern of what no value may hold; `as_json`:
    whether figures may be written so.
    """

    longest_name: int
    longest_value: int
    foreign: str = ""
    as_json: bool = True

    def texts(self, telling: VersionReport) -> dict[str, str]:
        """Return the texts to write, by name; the overall verdict is last."""
        entries = {f"{OWN_TAGS}{name}": text for build in telling.builds for name, text in self._of(build)}
        if telling.verdict:
            entries[f"{OWN_TAGS}verdict"] = telling.verdict
        return {name: self._fitting(text) for name, text in entries.items()}

    def _of(self, build: Build) -> Iterator[tuple[str, str]]:
        fields = {
            "verdict": build.verdict,
            "reason": build.reason,
            "published": ", ".join(build.places),
            "manifest": build.manifest_digest,
            "figures": self._figures(build.figures),
            "run": build.run,
        }
        room = self.longest_name - len(OWN_TAGS) - max(map(len, fields)) - 1
        label = _label(f"{build.model}.{build.target}", room)
        for name, text in fields.items():
            yield f"{label}.{name}", text or NOTHING

    def _figures(self, figures: Mapping[str, int | float | str]) -> str:
        """Format as many figures as fit: truncated JSON is invalid, and a truncated number is a wrong one."""
        left = dict(figures)
        while left:
            text = json.dumps(left) if self.as_json else " ".join(f"{name}={value}" for name, value in left.items())
            if len(text.encode()) <= self.longest_value:
                return text
            left.popitem()
        return ""

    def _fitting(self, text: str) -> str:
        """Adapt a text to the registry: unsupported characters become a space, and long texts are truncated."""
        plain = re.sub(f"(?: *{self.foreign})+ *", " ", text) if self.foreign else text
        return plain.encode(errors="replace")[: self.longest_value].decode(errors="ignore")


def whole_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several builds: published if all are."""
    return min(verdicts, key=_BY_WEIGHT.index, default="published")


def _label(text: str, longest: int) -> str:
    plain = _NO_LABEL.sub("_", text)
    if plain == text and len(plain) <= longest:
        return plain
    return f"{plain[: longest - _DIGEST_LENGTH - 1]}-{digest_of(text)[:_DIGEST_LENGTH]}"


MLFLOW_FORM = Form(longest_name=250, longest_value=5000)
"""What every store behind an MLflow server takes."""


class MlflowWriter:
    """Write-back to an MLflow server.

    Args:
        config: of the registry.
        environment: of the process, with MLflow's credentials.
    """

    def __init__(self, config: MlflowRegistry, environment: Mapping[str, str]) -> None:
        self._alias = config.write_back_alias
        self._api = MlflowApi(config.tracking_uri, environment)

    def write(self, telling: VersionReport, still_ours: Callable[[], bool]) -> bool:
        """As `Writer.write`. Unchanged values are not set again, as each change triggers a delivery."""
        model, version = telling.event.model, telling.event.version
        existing = self._api.tags(model, version)
        if existing is None:
            raise self._absent(telling)
        for key, value in MLFLOW_FORM.texts(telling).items():
            if existing.get(key) == value:
                continue
            if not still_ours():
                return False
            if not self._api.set_tag(model, version, key, value):
                raise self._absent(telling)
        if not self._alias or telling.verdict != "published" or not telling.is_last:
            return True
        if (self._api.aliases(model) or {}).get(self._alias) == version:
            return True
        if not still_ours():
            return False
        if not self._api.set_alias(model, version, self._alias):
            raise self._absent(telling)
        return True

    def _absent(self, telling: VersionReport) -> UsageError:
        return UsageError(
            f"there is no version {telling.event.version} of {telling.event.model} at {self._api.address} any more",
            remedy="it was deleted, or tracking_uri names another server",
        )


SAGEMAKER_FORM = Form(longest_name=128, longest_value=256, foreign=r"[^\w .:/=+\-@]", as_json=False)
"""What the metadata of a package takes: no JSON, which has braces and commas."""


class SageMakerWriter:
    """Write-back to the SageMaker Model Registry; other metadata of a package is preserved.

    Args:
        config: of the registry.
    """

    def __init__(self, config: SageMakerRegistry) -> None:
        self._config = config

    def write(self, telling: VersionReport, still_ours: Callable[[], bool]) -> bool:
        """As `Writer.write`. Unchanged values are not written again, as each change triggers an event."""
        arn = telling.event.version
        sagemaker = package_service(self._config, arn)
        try:
            package = sagemaker.call("describe_model_package", ModelPackageName=arn)
            existing = package.get("CustomerMetadataProperties") or {}
            # With what is there: nothing says whether what is left out of an update stays.
            entries = {**existing, **SAGEMAKER_FORM.texts(telling)}
            if entries == existing:
                return True
            if len(entries) > MOST_PROPERTIES:
                raise UsageError(
                    f"the metadata of {arn} would have {len(entries)} entries, and SageMaker takes {MOST_PROPERTIES}",
                    remedy="name fewer targets in the rule, or remove entries from the package",
                )
            if not still_ours():
                return False
            sagemaker.call("update_model_package", ModelPackageArn=arn, CustomerMetadataProperties=entries)
        finally:
            sagemaker.close()
        return True


def writers_of(registries: Mapping[str, Registry]) -> dict[str, Writer]:
    """Return a writer for each registry with write-back, by name; credentials are taken from the environment."""
    writers: dict[str, Writer] = {}
    for name, registry in registries.items():
        match registry:
            case MlflowRegistry(write_back=True):
                writers[name] = MlflowWriter(registry, os.environ)
            case SageMakerRegistry(write_back=True):
                writers[name] = SageMakerWriter(registry)
            case _:
                pass
    return writers
