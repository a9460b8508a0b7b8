"""Where the files of a registered model may come from.

Whoever may register a version chooses the address of its files, and MLflow takes nearly any. Only what MLflow's own
server hands out, and what the operator of this machine names, is fetched; files of this machine never are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from plansmith.errors import SourceError, UsageError
from plansmith.sources.remote_files import is_name, printable
from plansmith.system.urls import without_secrets

VARIABLE = "PLANSMITH_MLFLOW_ALLOWED"
"""Names further places, separated by commas: s3://bucket[/prefix], or https://host of another MLflow server."""

API = "/api/2.0/mlflow-artifacts/artifacts"
"""Where an MLflow server hands out files, below its address."""

_EXAMPLE = "s3://models/mlflow,https://artifacts.example.com"


@dataclass(frozen=True)
class ArtifactLocation:
    """Where the files of one version lie.

    Args:
        kind: "served" by an MLflow server, or in "s3".
        root: the server's address, or the bucket.
        path: below it, without a slash at either end.
    """

    kind: str
    root: str
    path: str

    def __str__(self) -> str:
        return f"s3://{self.root}/{self.path}" if self.kind == "s3" else f"{self.root}{API}/{self.path}"


@dataclass(frozen=True)
class Allowed:
    """What the operator named: buckets with prefixes, and addresses of further servers."""

    buckets: tuple[tuple[str, str], ...] = ()
    servers: tuple[str, ...] = ()


def allowed_here(environment: Mapping[str, str] = os.environ) -> Allowed:
    """The places that the environment names.

    Raises:
        UsageError: an entry is none.
    """
    buckets, servers = [], []
    for entry in filter(None, (part.strip() for part in environment.get(VARIABLE, "").split(","))):
        found = urlsplit(entry)
        if found.scheme == "s3" and found.hostname and not found.query:
            buckets.append((found.netloc, found.path.strip("/")))
        elif found.scheme in {"http", "https"} and found.hostname and not found.username and not found.query:
            servers.append(entry.rstrip("/"))
        else:
            raise UsageError(f"{VARIABLE}: {without_secrets(entry)!r} is no place", remedy=f"write it as in {_EXAMPLE}")
    return Allowed(tuple(buckets), tuple(servers))


def place_of(address: str, *, server: str, allowed: Allowed, of: str) -> ArtifactLocation:
    """Where an artefact's address leads, if it may be gone to.

    Args:
        address: as the registry has it.
        server: the address of the MLflow server itself, without secrets.
        allowed: further places.
        of: the version, for errors.

    Raises:
        SourceError: any other place.
    """
    try:
        found = urlsplit(address)
    except ValueError as error:
        raise _refused(of, address, "correct the version's source") from error
    path = unquote(found.path)
    if found.query or found.fragment or found.username or not _is_plain(path):
        raise _refused(of, address, "correct the version's source: it holds what no address of files has")
    if found.scheme == "mlflow-artifacts":
        root = _server(found.netloc, server, allowed)
        if root:
            return ArtifactLocation("served", root, path.strip("/"))
    elif found.scheme in {"http", "https"}:
        for root in (server, *allowed.servers):
            if address.startswith(f"{root}{API}/"):
                return ArtifactLocation("served", root, unquote(address.removeprefix(f"{root}{API}/")).strip("/"))
    elif found.scheme == "s3":
        inside = path.strip("/")
        if any(found.netloc == b and (not p or inside == p or inside.startswith(f"{p}/")) for b, p in allowed.buckets):
            return ArtifactLocation("s3", found.netloc, inside)
        way = f"{VARIABLE}=s3://{found.netloc}"
        raise _refused(of, address, f"if files from there may be trusted: export {way}")
    raise _refused(
        of, address, f"log the model to the server's own store, or name its bucket or server in {VARIABLE} ({_EXAMPLE})"
    )


def _server(host: str, server: str, allowed: Allowed) -> str:
    """The address of the server that mlflow-artifacts://host means; empty where it is no allowed one."""
    if not host:
        return server
    return next((root for root in (server, *allowed.servers) if urlsplit(root).netloc == host), "")


def _is_plain(path: str) -> bool:
    parts = path.strip("/").split("/")
    return all(is_name(part) for part in parts) if path.strip("/") else True


def _refused(of: str, address: str, remedy: str) -> SourceError:
    try:
        shown = printable(without_secrets(address))
    except ValueError:
        shown = "an address that is none"
    return SourceError(
        f"{of} lies at {shown or 'no address'}, which is no place that models may come from", remedy=remedy
    )
