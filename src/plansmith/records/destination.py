"""Publish destinations: a folder or an S3 prefix, and how to reach it."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from plansmith.records.fields import Confidential, Switch
from plansmith.records.model import Record

CURRENT = "current"
"""The alias that a publication moves where no other is named."""

S3_SCHEME = "s3://"

_SCHEMES = "s3|gs|gcs|az|abfs|hdfs|https?|file"
PLACE_PATTERN = rf"^({S3_SCHEME}[A-Za-z0-9]|(?!.*://)(?!({_SCHEMES}):).)"
"""What the text of every place matches; `wrong_place` knows more."""

# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; other servers allow upper case and underscores.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")


def wrong_place(text: str) -> str | None:
    """Describe why a text is no valid place for releases; None if it is valid."""
    if not text:
        return "it is empty"
    if "://" not in text:
        scheme = re.match(f"({_SCHEMES}):", text, re.IGNORECASE)
        return f"{scheme[0]} is no folder; an S3 prefix is {S3_SCHEME}bucket/prefix" if scheme else None
    if not text.startswith(S3_SCHEME):
        return f"only folders and {S3_SCHEME}bucket/prefix are known"
    bucket, slash, prefix = text.removeprefix(S3_SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        return "what follows s3:// is no name of a bucket"
    parts = prefix.rstrip("/").split("/")
    if slash and (prefix.startswith("/") or (parts != [""] and {"", ".", ".."} & set(parts)) or not text.isprintable()):
        return "a prefix has no empty parts, no . or .. and no control characters"
    return None


def wrong_alias(text: str) -> str | None:
    """Describe why a text is no valid alias; None if it is valid."""
    if _ALIAS.fullmatch(text):
        return None
    return f"{text!r} is no alias: a letter, then at most 62 of A-Z a-z 0-9 . _ -"


def _check_place(value: str) -> str:
    wrong = wrong_place(value)
    if wrong is not None:
        raise ValueError(f"no destination: {wrong}")
    return value


def _check_alias(value: str) -> str:
    wrong = wrong_alias(value)
    if wrong is not None:
        raise ValueError(wrong)
    return value


def _check_endpoint(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in {"http", "https"} or not parts.hostname):
        raise ValueError("an endpoint is http://host:port or https://host:port")
    if parts.username or parts.password:
        raise ValueError("an endpoint holds no credentials: they come from the usual AWS chain")
    return value


Endpoint = Annotated[str, AfterValidator(_check_endpoint), Confidential()]
"""Where another server answers than AWS's own; empty for that one."""

Alias = Annotated[str, AfterValidator(_check_alias)]
"""A name that stands for a version of a model, such as `champion`."""


class Location(Record):
    """Location: a folder or S3 prefix, with its access options.

    What is left empty is found as every AWS tool does: AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, AWS_CA_BUNDLE, the
    configuration files and the roles named there or given to the machine.
    """

    to: Annotated[str, AfterValidator(_check_place), Confidential()] = Field(
        description="A folder, relative to the spec, or s3://bucket/prefix.",
        json_schema_extra={"pattern": PLACE_PATTERN},
    )
    endpoint_url: Endpoint = Field(
        default="", description="Where another S3-compatible server answers, such as https://minio.lan:9000."
    )
    region: str = Field(default="", description="The bucket's region.")
    profile: str = Field(default="", description="A profile of the AWS configuration files.")
    ca_bundle: str = Field(default="", description="Certificates to trust, a PEM file, relative to the spec.")
    path_style: Switch | None = Field(
        default=None,
        description="Name the bucket in the path instead of the host; by default with an endpoint of one's own.",
    )
    encryption: Literal["", "AES256", "aws:kms"] = Field(
        default="", description="Server-side encryption that is asked for with each object; the bucket's when empty."
    )
    kms_key: str = Field(default="", description="The key for aws:kms.")

    @property
    def is_s3(self) -> bool:
        """Whether it is an S3 prefix rather than a folder."""
        return self.to.startswith(S3_SCHEME)

    @property
    def bucket_and_prefix(self) -> tuple[str, str]:
        """The bucket and the prefix without a trailing slash; the prefix may be empty."""
        bucket, _, prefix = self.to.removeprefix(S3_SCHEME).partition("/")
        return bucket, prefix.rstrip("/")

    @property
    def reached(self) -> str:
        """The command line options for access, each after a space; those that `aws` shares."""
        options = {name: getattr(self, name) for name in ("endpoint_url", "region", "profile", "ca_bundle")}
        typed = [f" --{name.replace('_', '-')} {shlex.quote(value)}" for name, value in options.items() if value]
        return "".join(typed)

    @property
    def typed(self) -> str:
        """The location as typed after `--store`."""
        style = {None: "", True: " --path-style", False: " --no-path-style"}[self.path_style]
        encryption = f" --encryption {self.encryption}" if self.encryption else ""
        key = f" --kms-key {shlex.quote(self.kms_key)}" if self.kms_key else ""
        return f"{shlex.quote(self.to.rstrip('/') or self.to)}{self.reached}{style}{encryption}{key}"

    def within(self, name: str) -> Self:
        """Return a folder or prefix within the location, with the same access options."""
        return self.model_copy(update={"to": f"{self.to.rstrip('/')}/{name}"})


def _read_place(value: Any) -> Any:
    return {"to": value} if isinstance(value, str) else value


WrittenPlace = Annotated[Location, BeforeValidator(_read_place)]
"""A place as a spec names it; one that is text is where, and nothing else is said of it."""


class Destination(Location):
    """Publish destination of a spec's releases, and the actions after publishing."""

    aliases: tuple[Alias, ...] = Field(
        default=(CURRENT,),
        description="Aliases that the new version gets.",
        json_schema_extra={"uniqueItems": True},
    )
    view: Switch = Field(
        default=False,
        description="Keep a model repository below the prefix, for a Triton that reads it there; it shows what the"
        " first of the aliases stands for.",
    )

    @model_validator(mode="after")
    def _check_view(self) -> Self:
        if self.view and not self.aliases:
            raise ValueError("a view shows what an alias stands for, and none is named")
        return self


def _read_destinations(value: Any) -> Any:
    """Parse one destination or several; plain text gives only the location."""
    several = value if isinstance(value, list | tuple) else [value]
    return [{"to": item} if isinstance(item, str) else item for item in several]


def _check_destinations(value: tuple[Destination, ...]) -> tuple[Destination, ...]:
    places = [destination.to.rstrip("/") for destination in value]
    repeated = sorted({place for place in places if places.count(place) > 1})
    if repeated:
        raise ValueError(f"names {', '.join(map(repr, repeated))} more than once")
    return value


Destinations = Annotated[
    tuple[Destination, ...], BeforeValidator(_read_destinations), AfterValidator(_check_destinations)
]
"""Destinations as a spec names them."""


class Publication(Record):
    """Outcome of a publication, actual or planned.

    `aliases`: those wanted that stand for the version; `elsewhere`: those wanted that stand for another one, and were
    left so because the store had the release already; `sent_bytes`: what had to be sent of `total_bytes`;
    `unchanged`: the store had the release already; `view`: it is kept in a model repository there, too; `caution`:
    what a person should know of the server.
    """

    place: str
    model: str
    version: int
    digest: str
    aliases: tuple[str, ...]
    elsewhere: dict[str, int] = Field(default_factory=dict)
    sent_bytes: int
    total_bytes: int
    unchanged: bool
    view: bool = False
    caution: str = ""
