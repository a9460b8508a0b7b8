"""A model in a bucket: found, compared with the revision that is wanted, and brought here as what a compile reads."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.s3_uri import S3Uri
from plansmith.errors import SourceError
from plansmith.sources.bucket_objects import BucketObjects, revision_of
from plansmith.sources.directory import library_of, read_config
from plansmith.sources.mlflow.flavors import FlavorFiles, FlavorOptions
from plansmith.sources.remote_files import Progress, download
from plansmith.sources.s3.archive import extract
from plansmith.sources.s3.model_detection import LocalFiles, detect_model


@dataclass(frozen=True)
class BucketModel:
    """A model and its objects, where they lie.

    Args:
        where: the place.
        revision: of the objects now.
        wishes: what may come along.
        objects: brings them.
        kept: those that a compile takes; of an archive, the archive alone, as only the unpacked one tells.
    """

    where: S3Uri
    revision: str
    wishes: FlavorOptions
    objects: BucketObjects
    kept: FlavorFiles | None

    def identity(self) -> dict[str, Any]:
        """What decides what is brought here, as JSON values."""
        listed = {one.key: one for one in self.objects.objects}
        named = [[name, file.path] for name, file in sorted(self.kept.files.items())] if self.kept else []
        return {
            "server": self.objects.server,
            "place": self.where.address,
            "kind": [self.kept.scheme, self.kept.graph] if self.kept else [*self.wishes.patterns],
            "files": [[name, path, listed[path].tag, listed[path].bytes] for name, path in named],
            "archive": "" if self.kept else self.revision,
        }

    def download(self, folder: Path, progress: Progress) -> dict[str, str]:
        """Bring what a compile reads into a folder; returns the `scheme`, and the `graph` of an ONNX model.

        Raises:
            SourceError: an object was written again meanwhile, or what was packed is no model.
            EnvironmentFault: there is no room, or the server does not answer.
        """
        kept = self.kept
        if kept is None:
            kept = self._extracted(folder, progress)
        else:
            download(self.objects, kept.files, folder, of=self.where.address, progress=progress)
        scheme = library_of(read_config(folder)) if kept.scheme == "hf" else kept.scheme
        return {"scheme": scheme, "graph": kept.graph}

    def _extracted(self, folder: Path, progress: Progress) -> FlavorFiles:
        """Bring an archive, and leave what a compile reads of it in the folder."""
        of = self.where.address
        work = folder / ".extracted"
        work.mkdir()
        (archive,) = self.objects.listed()
        download(self.objects, {"archive": archive}, work, of=of, progress=progress)
        inside = extract(work / "archive", work / "files", of=of, progress=progress)
        kept = detect_model(LocalFiles(inside, of), self.wishes, of)
        for name, file in kept.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (inside / file.path).rename(folder / name)
        shutil.rmtree(work)
        return kept


def find_model(where: S3Uri, wishes: FlavorOptions) -> BucketModel:
    """List a model's objects, and see which of them a compile takes.

    Raises:
        SourceError: there is nothing, it may not be read, it is no model, or not the one that was announced.
        EnvironmentFault: S3 cannot be reached, or its client is not installed.
    """
    objects = BucketObjects(where.address, where.address, is_archive=where.is_archive)
    objects.listed()
    revision = revision_of(objects.objects)
    if where.revision and where.revision != revision:
        raise SourceError(
            f"{where.address} holds something else than was announced: revision {revision}, not {where.revision}",
            remedy=f"build what is there now: {where.address}@{revision}; or put the other one there again",
        )
    kept = None if where.is_archive else detect_model(objects, wishes, where.address)
    return BucketModel(where, revision, wishes, objects, kept)


def newest_revision(address: str, wanted: str) -> str:
    """The revision of what lies at an address now, or the one that is wanted, which it has for good.

    Raises:
        SourceError: there is nothing, or it may not be read.
        EnvironmentFault: S3 cannot be reached.
    """
    if wanted:
        return wanted
    objects = BucketObjects(address, address, is_archive=S3Uri(address).is_archive)
    objects.listed()
    return revision_of(objects.objects)
