"""S3 objects of a model: listed once, and read only while they match that listing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plansmith.errors import EnvironmentFault, RepositoryError, SourceError, UsageError
from plansmith.records.destination import Location, wrong_place
from plansmith.sources.remote_files import MOST_FILES, RemoteFile, require_plain, too_many
from plansmith.system.aws.bucket import Bucket, ExpectedError, ObjectMetadata
from plansmith.system.aws.s3_errors import ABSENT
from plansmith.system.digest import digest_of

# As _READY and _SUCCESS: producers write them when all else is there, often with the time in them.
_MARKER = re.compile(r"_[A-Z]+")

# What commands of stores take as options, a source finds in the environment.
_OPTIONS = {
    "--profile, AWS_PROFILE": "AWS_PROFILE",
    "--profile": "AWS_PROFILE",
    "--endpoint-url": "AWS_ENDPOINT_URL_S3",
    "--region and": "AWS_REGION and",
    "--region ": "AWS_REGION=",
    "--ca-bundle": "AWS_CA_BUNDLE",
}


def revision_of(objects: Iterable[ObjectMetadata]) -> str:
    """Return the revision of a model: a digest of S3's object metadata, the same for all readers.

    Args:
        objects: with keys relative to the model's folder. Their tags change with every content; markers do not count.
    """
    return digest_of(sorted([item.key, item.tag, item.bytes] for item in objects if _is_content(item.key)))


class BucketObjects:
    """Model files in a bucket, accessed as the environment configures (AWS_PROFILE, AWS_ENDPOINT_URL_S3, …).

    Args:
        address: s3://bucket/prefix of a folder, or s3://bucket/key of an archive.
        of: what the model is called in errors.
        is_archive: the model is packed in one object, which is its one file then.
        endpoint_url: of a server that is not AWS's own, where it is not the environment's.

    Raises:
        SourceError: it is no address in S3.
    """

    def __init__(self, address: str, of: str, *, is_archive: bool = False, endpoint_url: str = "") -> None:
        self._address = address.rstrip("/")
        folder, self._key = self._address, ""
        if is_archive:
            folder, _, self._key = self._address.rpartition("/")
        if wrong := wrong_place(folder):
            raise SourceError(f"{of} is at no place in S3: {wrong}", remedy="name a bucket, and a prefix in it")
        self._of = of
        self._bucket = Bucket(Location(to=folder, endpoint_url=endpoint_url), Path())
        self._objects: dict[str, ObjectMetadata] = {}

    @property
    def server(self) -> str:
        """The address of the server."""
        with self._errors():
            return str(self._bucket.client.meta.endpoint_url)

    @property
    def objects(self) -> tuple[ObjectMetadata, ...]:
        """S3's metadata of the files at the time of listing."""
        return tuple(self._objects.values())

    def listed(self) -> tuple[RemoteFile, ...]:
        """As `RemoteFiles.listed`; listed once, and only listed objects are read."""
        if not self._objects:
            with self._errors():
                self._objects = self._archive() if self._key else self._folder()
        if not self._objects:
            expected = f", where {self._of} should lie" if self._of != self._address else ""
            raise SourceError(
                f"there is nothing at {self._address}{expected}",
                remedy=f"see what is there: aws s3 ls {self._address}{'' if self._key else '/'}",
            )
        return tuple(RemoteFile(path, entry.bytes) for path, entry in sorted(self._objects.items()))

    def pieces(self, path: str) -> Iterator[bytes]:
        """As `RemoteFiles.pieces`; resumes after a lost connection.

        Raises:
            SourceError: the object is gone, or another one than was listed, besides.
        """
        entry = self._objects[path]
        with self._errors():
            try:
                yield from self._bucket.stream(entry.key, 0, entry.bytes, tag=entry.tag)
            except ExpectedError as answered:
                happened = "removed" if answered.code == ABSENT else "written again"
                raise SourceError(
                    f"{path} of {self._of} was {happened} while it was fetched",
                    remedy="run the same command again when nobody writes there",
                    transient=True,
                ) from answered

    def _archive(self) -> dict[str, ObjectMetadata]:
        entry = self._bucket.find(self._key)
        return {self._key: entry} if entry is not None else {}

    def _folder(self) -> dict[str, ObjectMetadata]:
        entries: dict[str, ObjectMetadata] = {}
        for entry in self._bucket.below(""):
            if not _is_content(entry.key):
                continue
            require_plain(entry.key, self._of)
            entries[entry.key] = entry
            if len(entries) > MOST_FILES:
                raise too_many(self._of)
        return entries

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate bucket errors for a source, which has no options and is no release store."""
        try:
            yield
        except (EnvironmentFault, RepositoryError, UsageError) as error:
            kind = SourceError if isinstance(error, RepositoryError) else type(error)
            raise kind(error.message, remedy=_without_options(error.remedy), transient=error.transient) from error


def _without_options(remedy: str) -> str:
    """Return a remedy with variables in place of store options; those of `aws` are kept."""
    text, command, arguments = remedy.partition("aws s3")
    for option, name in _OPTIONS.items():
        text = text.replace(option, name)
    return f"{text}{command}{arguments}"


def _is_content(path: str) -> bool:
    """Whether an object is part of a model, by its path in the model's folder: no marker or folder name."""
    return bool(path) and not path.endswith("/") and not _MARKER.fullmatch(path)
