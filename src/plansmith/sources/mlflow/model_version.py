"""A version of a registered model: found on its server, and brought here as what a compile reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.mlflow_uri import RegisteredName
from plansmith.sources.bucket_objects import BucketObjects
from plansmith.sources.mlflow.allowlist import allowed_here, place_of
from plansmith.sources.mlflow.client import Version, find_server
from plansmith.sources.mlflow.flavors import FlavorFiles, FlavorOptions, described_files
from plansmith.sources.mlflow.http_artifacts import ServedFiles
from plansmith.sources.remote_files import Progress, RemoteFiles, download

_S3_ENDPOINT = "MLFLOW_S3_ENDPOINT_URL"
"""Says to MLflow's clients where S3 is, if it is not AWS's own."""


@dataclass(frozen=True)
class RegisteredVersion:
    """A version and its files, where they lie.

    Args:
        version: the number that was meant when it was asked for.
        server: that was asked, without secrets.
        place: where the files lie, in words.
        described: the digest of what the version says of itself.
        files: brings them.
        kept: those that a compile takes, and how they are read.
    """

    version: Version
    server: str
    place: str
    described: str
    files: RemoteFiles
    kept: FlavorFiles

    def identity(self) -> dict[str, Any]:
        """What decides what is brought here, as JSON values.

        A version keeps its files for good, and MLflow tells no digest of them; but a model that was deleted may be
        registered again under its name, and its first version is number 1 again: hence the time, what it says of itself
        (which has an id and a time of its own), and the sizes.
        """
        return {
            "server": self.server,
            "version": str(self.version),
            "made": self.version.made,
            "place": self.place,
            "described": self.described,
            "files": [[name, file.path, file.bytes] for name, file in sorted(self.kept.files.items())],
        }

    def download(self, folder: Path, progress: Progress) -> dict[str, str]:
        """Bring what a compile reads into a folder; returns the `scheme`, and the `graph` of an ONNX model.

        Raises:
            SourceError: a file is not what was announced, or all are more than is allowed.
            EnvironmentFault: there is no room, or whoever has the files does not answer.
        """
        download(self.files, self.kept.files, folder, of=str(self.version), progress=progress)
        return {"scheme": self.kept.scheme, "graph": self.kept.graph}


def find_version(model: RegisteredName, wishes: FlavorOptions) -> RegisteredVersion:
    """Ask the server of the environment which version is meant now, what it is, and where its files lie.

    Raises:
        SourceError: there is no such version, it cannot be read, or it lies where models may not come from.
        EnvironmentFault: no server is named, or it does not answer.
        UsageError: what is allowed is written wrongly.
    """
    server, allowed = find_server(), allowed_here()
    version = server.version(model)
    of = str(version)
    place = place_of(version.address, server=server.shown, allowed=allowed, of=of)
    files: RemoteFiles = (
        BucketObjects(str(place), of, endpoint_url=os.environ.get(_S3_ENDPOINT, ""))
        if place.kind == "s3"
        else ServedFiles(server.at(place.root), place.path, of)
    )
    described, kept = described_files(files, files.listed(), wishes, of)
    return RegisteredVersion(version, server.shown, str(place), described, files, kept)


def newest_version(location: str, wanted: str) -> str:
    """The number of the version that `models:/name` and `@alias`, `latest` or a number mean now.

    Raises:
        SourceError: there is none.
        EnvironmentFault: no server is named, or it does not answer.
    """
    model = RegisteredName.of(location, wanted)
    return model.wanted if model.is_fixed else find_server().number(model)
