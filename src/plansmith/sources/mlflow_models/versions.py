"""A version of a registered model: found on its server, and brought here as what a compile reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import SourceError
from plansmith.sources.mlflow_models.allowed import allowed_here, place_of
from plansmith.sources.mlflow_models.bucket_files import BucketFiles
from plansmith.sources.mlflow_models.files import Files, RemoteFile, Telling, bring, read_small
from plansmith.sources.mlflow_models.flavours import MODEL_FILE, MOST_BYTES, Wishes, choose, read_model_file
from plansmith.sources.mlflow_models.names import RegisteredName
from plansmith.sources.mlflow_models.served_files import ServedFiles
from plansmith.sources.mlflow_models.server import Version, find_server


@dataclass(frozen=True)
class FoundVersion:
    """A version and its files, where they lie.

    Args:
        version: the number that was meant when it was asked for.
        server: that was asked, without secrets.
        place: where the files lie, in words.
        files: brings them.
        listed: all that there are.
    """

    version: Version
    server: str
    place: str
    files: Files
    listed: tuple[RemoteFile, ...]

    def identity(self, wishes: Wishes) -> dict[str, Any]:
        """What decides what is brought here, as JSON values.

        A version keeps its files for good, and MLflow tells no digest of them; but a model that was deleted may be
        registered again under its name, and its first version is number 1 again: hence the time and the sizes.
        """
        return {
            "server": self.server,
            "version": str(self.version),
            "made": self.version.made,
            "place": self.place,
            "files": [[file.path, file.bytes] for file in self.listed],
            "trust_remote_code": wishes.trust_remote_code,
            "allow_pickle": wishes.allow_pickle,
        }

    def bring(self, wishes: Wishes, folder: Path, tell: Telling) -> dict[str, str]:
        """Bring what a compile reads into a folder; returns the `scheme`, and the `graph` of an ONNX model.

        Raises:
            SourceError: no flavour can be read, or a file is not what was announced.
            EnvironmentFault: there is no room, or whoever has the files does not answer.
        """
        of = str(self.version)
        described = next((file for file in self.listed if file.path == MODEL_FILE), None)
        if described is None:
            raise SourceError(
                f"{of} has no {MODEL_FILE}: its files are no model that MLflow logged",
                remedy="log it with one of MLflow's flavours, such as mlflow.transformers.log_model",
            )
        flavours = read_model_file(read_small(self.files, described, MOST_BYTES, of), of)
        kept = choose(flavours, self.listed, wishes, of)
        bring(self.files, kept.files, folder, of=of, tell=tell)
        return {"scheme": kept.scheme, "graph": kept.graph}


def find_version(model: RegisteredName) -> FoundVersion:
    """Ask the server of the environment which version is meant now, and where its files lie.

    Raises:
        SourceError: there is no such version, or its files lie where models may not come from.
        EnvironmentFault: no server is named, or it does not answer.
        UsageError: what is allowed is written wrongly.
    """
    server, allowed = find_server(), allowed_here()
    version = server.version(model)
    of = str(version)
    place = place_of(version.address, server=server.shown, allowed=allowed, of=of)
    files: Files = (
        BucketFiles(place.root, place.path, of)
        if place.kind == "s3"
        else ServedFiles(server.at(place.root), place.path, of)
    )
    return FoundVersion(version, server.shown, str(place), files, files.listed())


def newest_version(location: str, wanted: str) -> str:
    """The number of the version that `models:/name` and `@alias`, `latest` or a number mean now.

    Raises:
        SourceError: there is none.
        EnvironmentFault: no server is named, or it does not answer.
    """
    model = RegisteredName.of(location, wanted)
    return model.wanted if model.is_fixed else find_server().number(model)
