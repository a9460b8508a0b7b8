"""Name patterns, in which * matches any characters and ? matches one; and the intersection of two patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from plansmith.records.destination import S3_SCHEME, Endpoint, wrong_place
from plansmith.records.fields import Confidential, Count, NonNegativeCount, Number, PositiveCount, Switch
from plansmith.records.model import Record

# A letter that stands in no pattern, for all of those that a ? or * takes beside the ones that are written out.
_OTHER = "\0"

_States = frozenset[int]

Change = Literal["alias", "stage", "tag", "created", "branch", "approved", "ready", "asked"]
"""An alias or tag was set on a version, it reached a stage, a version was made, a branch moved, a package was approved,
a folder is complete, or somebody asked."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|block:[a-z0-9-]+")
_MLFLOW_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,255}")
_RESERVED_ALIAS = re.compile(r"latest|v[0-9]+", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_FEWEST_SECONDS = 5
ConfidentialText = Annotated[str, Confidential()]
Window = Annotated[Count, Field(ge=60, le=86_400)]
"""Seconds, far below the time for which the inbox knows a delivery again."""


def is_match(text: str, pattern: str) -> bool:
    """Whether a pattern matches a text; case-sensitive, and [ is an ordinary character."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def is_overlapping(first: str, second: str) -> bool:
    """Whether some text matches both patterns."""
    return any(_ends(mine, first) and _ends(theirs, second) for mine, theirs in _walk(first, second))


def is_covering(wide: str, narrow: str) -> bool:
    """Whether a pattern matches every text that another one matches."""
    return not any(_ends(inner, narrow) and not _ends(outer, wide) for inner, outer in _walk(narrow, wide))


def _walk(first: str, second: str) -> Iterator[tuple[_States, _States]]:
    """Return the states of two patterns after each text, as far as they differ.

    A state is how many characters of a pattern are used up; texts of the letters of both and one more tell all apart.
    """
    letters = sorted({*first, *second, _OTHER} - {"*", "?"})
    begin = (_without_stars(first, {0}), _without_stars(second, {0}))
    visited, left = {begin}, [begin]
    while left:
        mine, theirs = left.pop()
        yield mine, theirs
        for letter in letters:
            after = (_after(first, mine, letter), _after(second, theirs, letter))
            if after not in visited:
                visited.add(after)
                left.append(after)


def _after(pattern: str, states: _States, letter: str) -> _States:
    took = {place if pattern[place] == "*" else place + 1 for place in states if _takes(pattern, place, letter)}
    return _without_stars(pattern, took)


def _takes(pattern: str, place: int, letter: str) -> bool:
    return place < len(pattern) and pattern[place] in {"*", "?", letter}


def _without_stars(pattern: str, states: set[int]) -> _States:
    """Return the states including those reached when stars match the empty string."""
    reachable = set(states)
    for place in states:
        end = place
        while end < len(pattern) and pattern[end] == "*":
            end += 1
            reachable.add(end)
    return frozenset(reachable)


def _ends(states: _States, pattern: str) -> bool:
    return len(pattern) in states


def _check_secret(value: str) -> str:
    if not _SECRET.fullmatch(value):
        raise ValueError("must be env:VARIABLE, or block:NAME of a Secret block of Prefect; never the secret itself")
    return value


def _check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("a name has at most 64 of a-z 0-9 _ - and starts with a letter or digit: it stands in URLs")
    return value


def _check_http(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in {"http", "https"} or not url.hostname or url.username:
        raise ValueError("must be an address such as https://mlflow.example.com, without a password in it")
    return value


def _check_host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError("must be a name such as plansmith.example.org, without https://, port, path or *")
    return value


def _check_prefix(value: str) -> str:
    if not value.startswith(S3_SCHEME):
        raise ValueError(f"must be {S3_SCHEME}bucket/prefix")
    if wrong := wrong_place(value):
        raise ValueError(wrong)
    return value


Secrets = Annotated[tuple[Annotated[str, AfterValidator(_check_secret)], ...], Confidential()]

Name = Annotated[str, AfterValidator(_check_name)]

Host = Annotated[str, AfterValidator(_check_host)]

HttpUrl = Annotated[str, AfterValidator(_check_http), Confidential()]


class _Registry(Record):
    """Common base class of registry configurations."""

    poll_seconds: Count = Field(
        default=300,
        ge=_FEWEST_SECONDS,
        description="How often `plansmith triggers watch` looks by itself: what no delivery told is made up for.",
    )

    @property
    def allowed_sources(self) -> tuple[str, ...] | None:
        """Patterns of the sources that events may name; None if the registry derives them from its contents."""
        return None


class MlflowRegistry(_Registry):
    """MLflow registry server."""

    type: Literal["mlflow"]
    tracking_uri: HttpUrl = Field(description="The server's address.")
    secrets: Secrets = Field(
        default=(), description="Any of them may have signed a delivery; none: deliveries are refused, polls go on."
    )
    window_seconds: Window = Field(default=300, description="How old a delivery may be.")
    write_back: Switch = Field(default=False, description="Tell the version what came of its build, as tags.")
    write_back_alias: str = Field(
        default="",
        description="Also an alias that is set on the version when all that was wanted of it is published; it builds"
        " nothing itself.",
    )

    @model_validator(mode="after")
    def _check_alias(self) -> Self:
        if not self.write_back_alias:
            return self
        if not self.write_back:
            raise ValueError("write_back_alias is set only with write_back: true")
        if not _MLFLOW_ALIAS.fullmatch(self.write_back_alias) or _RESERVED_ALIAS.fullmatch(self.write_back_alias):
            raise ValueError("write_back_alias: MLflow takes at most 255 of A-Z a-z 0-9 _ -, but not latest, v1, v2, …")
        return self


class HubRegistry(_Registry):
    """Hugging Face Hub registry."""

    type: Literal["hub"]
    secrets: Secrets = Field(default=(), description="As given to the webhook, sent in X-Webhook-Secret.")


class SageMakerRegistry(_Registry):
    """SageMaker Model Registry, through EventBridge and SQS."""

    type: Literal["sagemaker"]
    queue_url: ConfidentialText = Field(description="The SQS queue that EventBridge's rule feeds.")
    region: str = Field(default="", description="Of the queue; the environment's when left out.")
    account: str = Field(default="", description="Only events of this account count; any when left out.")
    sources: tuple[str, ...] = Field(
        default=(),
        description="Where packages may lie, such as s3://bucket/models/*; * and ? stand for any letters. A package"
        " that lies elsewhere is set aside.",
    )
    endpoint_url: Endpoint = Field(default="", description="Of SQS, where it is not AWS's own.")
    sagemaker_endpoint_url: Endpoint = Field(default="", description="Of SageMaker, where it is not AWS's own.")
    write_back: Switch = Field(default=False, description="Write what came of a build into the package's metadata.")

    @property
    def allowed_sources(self) -> tuple[str, ...]:
        """The allowed sources; as of every registry."""
        return self.sources


class FolderRegistry(_Registry):
    """Folder registry: each model is put into its own subfolder."""

    type: Literal["folder"]
    path: str = Field(description="The folder, relative to the service's directory.")
    ready: str = Field(default="_READY", description="The file that a producer writes last, in the model's folder.")


class S3Registry(_Registry):
    """S3 registry: models are put under a prefix."""

    type: Literal["s3"]
    prefix: Annotated[str, AfterValidator(_check_prefix), Confidential()] = Field(
        description="s3://bucket/prefix.", json_schema_extra={"pattern": f"^{S3_SCHEME}"}
    )
    ready: str = Field(default="_READY", description="The object that a producer writes last, under the model's name.")
    queue_url: ConfidentialText = Field(
        default="", description="The SQS queue of the bucket's notifications; polled without one."
    )
    region: str = Field(default="", description="The environment's when left out.")
    endpoint_url: Endpoint = Field(
        default="",
        description="Of the bucket, where it is not AWS's own; what a run fetches from `s3://` comes from there, too.",
    )
    queue_endpoint_url: Endpoint = Field(default="", description="Of SQS, where it is not AWS's own.")


class HookRegistry(_Registry):
    """Generic webhook registry: any sender that can sign a request."""

    type: Literal["hook"]
    secrets: Secrets = Field(min_length=1, description="Any of them may have signed a request.")
    window_seconds: Window = Field(default=300, description="How old a request may be.")
    sources: tuple[str, ...] = Field(
        default=(),
        description="Which sources a request may name, such as hf:org/*; * and ? stand for any letters. None: the"
        " spec's own stays.",
    )

    @property
    def allowed_sources(self) -> tuple[str, ...]:
        """The allowed sources; as of every registry."""
        return self.sources


Registry = Annotated[
    MlflowRegistry | HubRegistry | SageMakerRegistry | FolderRegistry | S3Registry | HookRegistry,
    Field(discriminator="type"),
]


class Rule(Record):
    """Trigger rule: which events build which spec."""

    registry: Name = Field(description="One of `registries`.")
    model: str = Field(description="The model's name in the registry; * and ? stand for any letters.")
    when: Change = Field(description="What has to happen.")
    value: str = Field(
        default="*", description="Which alias, tag as KEY=VALUE, branch or Git tag (refs/heads/main); * for any."
    )
    spec: str = Field(description="The spec file of what is built; its source gives way to that of the event.")
    targets: tuple[str, ...] = Field(default=(), description="Targets in place of the spec's own.")


class Limits(Record):
    """Receiver limits on requests."""

    body_bytes: Count = Field(default=1_048_576, ge=1024, description="The largest body.")
    per_minute: PositiveCount = Field(default=6000, description="Requests of one address in a minute.")
    head_seconds: Number = Field(
        default=10, gt=0, description="How long a connection may take until a request has begun: all of its headers."
    )
    body_seconds: Number = Field(default=10, gt=0, description="How long a client may take to send its body.")


class TriggersConfig(Record):
    """Trigger configuration: the registries, and the builds that their events start."""

    database: ConfidentialText = Field(
        default="",
        description="Where deliveries are kept: sqlite:///FILE or postgresql://…, or env:VARIABLE that holds it;"
        " plansmith-triggers.db in the service's directory when left out.",
    )
    registries: dict[Name, Registry] = Field(min_length=1, description="By name; /hooks/NAME takes their deliveries.")
    rules: tuple[Rule, ...] = Field(min_length=1, description="The first that matches an event decides.")
    hosts: tuple[Host, ...] = Field(
        default=(),
        description="Names that browsers see the status page under, besides addresses, localhost and that of --host.",
    )
    limits: Limits = Limits()
    retries: NonNegativeCount = Field(
        default=20, description="How often what failed by a bug is tried again; what is away is waited for."
    )

    @property
    def mlflow_server(self) -> str:
        """The MLflow server that runs fetch versions from; empty for the one in a run's environment."""
        return next((registry.tracking_uri for registry in self.registries.values() if registry.type == "mlflow"), "")

    @property
    def s3_server(self) -> str:
        """The S3 server that runs fetch objects from; empty for the one in a run's environment."""
        return next((registry.endpoint_url for registry in self.registries.values() if registry.type == "s3"), "")

    @model_validator(mode="after")
    def _check_servers(self) -> Self:
        mlflow = {
            registry.tracking_uri.rstrip("/") for registry in self.registries.values() if registry.type == "mlflow"
        }
        if len(mlflow) > 1:
            raise ValueError(
                f"registries name {len(mlflow)} MLflow servers, and a run fetches from one (MLFLOW_TRACKING_URI):"
                " give each a service and pools of its own"
            )
        s3 = {registry.endpoint_url.rstrip("/") for registry in self.registries.values() if registry.type == "s3"}
        if len(s3) > 1:
            raise ValueError(
                f"registries of type s3 are on {len(s3)} servers, and a run fetches from one (AWS_ENDPOINT_URL_S3):"
                " give each a service and pools of its own"
            )
        return self
