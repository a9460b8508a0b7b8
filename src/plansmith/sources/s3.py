"""Model archives (.tar.gz), extracted as untrusted files.

Only plain files and folders are taken out, under plain names below the folder. Their number and size are bounded, and
so is what a header may hold, as a few packed bytes become any number of them.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from plansmith.config.source_reference import S3Uri
from plansmith.errors import SourceError
from plansmith.sources.bucket_objects import BucketObjects, revision_of
from plansmith.sources.directory import CONFIG_FILE, GRAPH_SUFFIX, graphs_of, library_of, read_config
from plansmith.sources.mlflow.model_version import (
    FlavorFiles,
    FlavorOptions,
    described_files,
    graph_alone,
    plain_folder,
)
from plansmith.sources.mlflow.module_files import MODEL_FILE
from plansmith.sources.remote_files import (
    MOST_FILES,
    Progress,
    RemoteFile,
    RemoteFiles,
    download,
    format_bytes,
    most_bytes,
    printable,
    require_plain,
    require_space,
    safe_path,
    too_many,
)

_PIECE_BYTES = 1 << 20
_PACK_AGAIN = "pack the model's files alone: tar czf model.tar.gz -C FOLDER ."


class _TooLarge(Exception):
    """Error: the archive contains more data besides its files than any valid one."""


class _TarStream(io.RawIOBase):
    """Decompressed stream, read in bounded chunks: headers are read in one go, and may have any size."""

    def __init__(self, packed: IO[bytes], most: int) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._most = most

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _PIECE_BYTES:
            raise _TooLarge
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset > self._most:
            raise _TooLarge
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def drain(self) -> None:
        """Read to the end, where the checksum of the whole stream is."""
        while self.read(_PIECE_BYTES):
            if self.tell() > self._most:
                raise _TooLarge


def extract(archive: Path, folder: Path, *, of: str, progress: Progress) -> Path:
    """Extract an archive's files; returns their folder, which may be the only one in the archive.

    Args:
        archive: a tar file, packed with gzip.
        folder: is made.
        of: what it is called in errors.
        progress: told how far it is.

    Raises:
        SourceError: it is damaged, larger than is allowed, or holds what no model consists of.
        EnvironmentFault: there is no room.
    """
    folder.mkdir()
    total = archive.stat().st_size
    done = 0
    most = most_bytes()
    with archive.open("rb") as packed, _errors(of):
        # Beside its content, a file has a header, padding, and at times a long name.
        stream = _TarStream(packed, most + MOST_FILES * 16_384)
        with tarfile.open(fileobj=stream, mode="r:") as opened:
            for member in _files(opened, of):
                done += member.size
                require_space(done, folder, of, written=done - member.size)
                _extract_file(opened, member, folder, of)
                progress(f"unpacking, {format_bytes(done)}", packed.tell() / total)
        stream.drain()
    inside = list(folder.iterdir())
    if not inside:
        raise SourceError(f"{of} holds no files", remedy=_PACK_AGAIN)
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _files(opened: tarfile.TarFile, of: str) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files in order; members of another kind are not skipped silently."""
    for number, member in enumerate(opened, start=1):
        if number > MOST_FILES:
            raise too_many(of)
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise _harmful(f"{printable(member.name)!r} is a {_kind(member)}", of)
        if member.size < 0:
            raise _damaged(of, "a file has a size below 0")
        yield member


def _extract_file(opened: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, of: str) -> None:
    """Extract one file."""
    name = member.name.removeprefix("./")
    path = safe_path(name)
    if path is None:
        raise _harmful(f"{printable(member.name)!r} leads out of its folder", of)
    source = opened.extractfile(member)
    assert source is not None
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            shutil.copyfileobj(source, out, _PIECE_BYTES)
    except (FileExistsError, NotADirectoryError) as error:
        raise _harmful(f"{printable(member.name)!r} is there twice", of) from error
    if target.stat().st_size != member.size:
        raise _damaged(of, "it ends before its last file does")


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "link"
    return "device" if member.isdev() else "file of another kind"


@contextmanager
def _errors(of: str) -> Iterator[None]:
    """Translate the libraries' errors for invalid archives."""
    try:
        yield
    except _TooLarge as error:
        raise _harmful("it holds more than it may, beside its files", of) from error
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise _damaged(of, str(error) or type(error).__name__) from error


def _damaged(of: str, why: str) -> SourceError:
    return SourceError(
        f"{of} is no whole .tar.gz: {printable(why)}", remedy=f"see that it was sent whole, or {_PACK_AGAIN}"
    )


def _harmful(why: str, of: str) -> SourceError:
    return SourceError(f"{of} is not unpacked: {why}", remedy=f"do not use it if others made it; else {_PACK_AGAIN}")


@dataclass(frozen=True)
class LocalFiles:
    """`RemoteFiles` of a local folder.

    Args:
        folder: that holds them.
        of: the model, for errors.
    """

    folder: Path
    of: str

    def listed(self) -> tuple[RemoteFile, ...]:
        """As `RemoteFiles.listed`."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        files = tuple(RemoteFile(path.relative_to(self.folder).as_posix(), path.stat().st_size) for path in paths)
        for file in files:
            require_plain(file.path, self.of)
        return files

    def pieces(self, path: str) -> Iterator[bytes]:
        """As `RemoteFiles.pieces`."""
        with (self.folder / path).open("rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece


def detect_model(files: RemoteFiles, wishes: FlavorOptions, of: str) -> FlavorFiles:
    """Detect the model's files: as MLmodel lists them, a folder of transformers or timm, or the only ONNX file.

    Args:
        files: of a folder.
        wishes: what may come along.
        of: what the model is called in errors.

    Raises:
        SourceError: they are none of that.
    """
    listed = files.listed()
    names = [file.path for file in listed]
    if MODEL_FILE in names:
        return described_files(files, listed, wishes, of)[1]
    graphs = graphs_of(names)
    if graphs is None:
        return plain_folder(listed, wishes, of)
    if len(graphs) == 1:
        return graph_alone(graphs[0], listed, of)
    contents = (
        f"several {GRAPH_SUFFIX} files ({', '.join(graphs)[:200]})"
        if graphs
        else f"neither {CONFIG_FILE} nor {GRAPH_SUFFIX}"
    )
    raise SourceError(
        f"{of} is no model: it holds {contents}",
        remedy="put there what save_pretrained wrote, one ONNX file with its weights, or a model that MLflow logged",
    )


@dataclass(frozen=True)
class BucketModel:
    """Model in a bucket, and its remote objects.

    Args:
        where: the place.
        revision: of the objects now.
        wishes: what may come along.
        objects: brings them.
        flavor_files: those that a compile takes; of an archive, the archive alone, as only the unpacked one tells.
    """

    where: S3Uri
    revision: str
    wishes: FlavorOptions
    objects: BucketObjects
    flavor_files: FlavorFiles | None

    def identity(self) -> dict[str, Any]:
        """Return the identity of the download, as JSON values."""
        listed = {item.key: item for item in self.objects.objects}
        named = (
            [[name, file.path] for name, file in sorted(self.flavor_files.files.items())] if self.flavor_files else []
        )
        return {
            "server": self.objects.server,
            "place": self.where.address,
            "kind": [self.flavor_files.scheme, self.flavor_files.graph]
            if self.flavor_files
            else [*self.wishes.patterns],
            "files": [[name, path, listed[path].tag, listed[path].bytes] for name, path in named],
            "archive": "" if self.flavor_files else self.revision,
        }

    def download(self, folder: Path, progress: Progress) -> dict[str, str]:
        """Download what a compile reads into a folder; returns the `scheme`, and the `graph` of an ONNX model.

        Raises:
            SourceError: an object was written again meanwhile, or what was packed is no model.
            EnvironmentFault: there is no room, or the server does not answer.
        """
        selection = self.flavor_files
        if selection is None:
            selection = self._extracted(folder, progress)
        else:
            download(self.objects, selection.files, folder, of=self.where.address, progress=progress)
        scheme = library_of(read_config(folder)) if selection.scheme == "hf" else selection.scheme
        return {"scheme": scheme, "graph": selection.graph}

    def _extracted(self, folder: Path, progress: Progress) -> FlavorFiles:
        """Download an archive, and extract the files that a compile needs into the folder."""
        of = self.where.address
        work = folder / ".extracted"
        work.mkdir()
        (archive,) = self.objects.listed()
        download(self.objects, {"archive": archive}, work, of=of, progress=progress)
        inside = extract(work / "archive", work / "files", of=of, progress=progress)
        selection = detect_model(LocalFiles(inside, of), self.wishes, of)
        for name, file in selection.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (inside / file.path).rename(folder / name)
        shutil.rmtree(work)
        return selection


def find_model(where: S3Uri, wishes: FlavorOptions) -> BucketModel:
    """List a model's objects, and choose those that a compile takes.

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
    selection = None if where.is_archive else detect_model(objects, wishes, where.address)
    return BucketModel(where, revision, wishes, objects, selection)


def newest_revision(address: str, revision: str) -> str:
    """Return the current revision of a location, or the requested one, which is immutable.

    Raises:
        SourceError: there is nothing, or it may not be read.
        EnvironmentFault: S3 cannot be reached.
    """
    if revision:
        return revision
    objects = BucketObjects(address, address, is_archive=S3Uri(address).is_archive)
    objects.listed()
    return revision_of(objects.objects)
