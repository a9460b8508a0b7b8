"""What came of builds, and what is told of them."""

from __future__ import annotations

from typing import Any

from plansmith.triggers.registries.delivery import Event
from plansmith.triggers.write_back import Build, Verdict, VersionReport, whole_verdict

RUN = "http://prefect.example.com/runs/flow-run/1"


def build(verdict: Verdict = "published", *, model: str = "ranker", target: str = "local-cpu", **more: Any) -> Build:
    """Of a model, with all that there is to say of it."""
    fields: dict[str, Any] = {"run": RUN}
    if verdict == "published":
        fields |= {
            "places": ("/srv/repository version 4", "s3://releases/team version 3"),
            "manifest_digest": "ab" * 32,
            "figures": {"bytes": 1024, "precision": "fp16", "min_cosine": 0.9999},
        }
    else:
        fields["reason"] = f"{verdict} at validate, exit code 5"
    return Build(model=model, target=target, verdict=verdict, **fields | more)


def telling(*builds: Build, event: Event, is_whole: bool = True, is_last: bool = True) -> VersionReport:
    """What is told of an event."""
    whole = whole_verdict(build.verdict for build in builds)
    return VersionReport(event=event, builds=builds, verdict=whole if is_whole else "", is_last=is_last)


def version(model: str = "ranker", number: int = 3) -> Event:
    """A version of an MLflow model became the champion."""
    source = f"mlflow:models:/{model}/{number}"
    return Event(registry="mlflow", model=model, version=str(number), change="alias", value="champion", source=source)
