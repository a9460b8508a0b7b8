"""Where the data of a spec lie: found, brought here and hashed in the parent, without reading a sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plansmith.config.data import DataSpec
from plansmith.data.images import SUFFIXES, image_files
from plansmith.data.reader import READERS, DataPlace, names_images
from plansmith.errors import SourceError, UsageError
from plansmith.sources.hub_dataset import fetch_dataset
from plansmith.system.digest import Digester, digest_of_files


def find_data(
    spec: DataSpec,
    *,
    relative_to: Path,
    digester: Digester,
    offline: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> DataPlace:
    """Find data; those of the hub are downloaded.

    For an entry point the digest stays empty: only its samples can tell, see `sampling.entry_point_digest`.

    Args:
        spec: says where.
        relative_to: the folder that a path starts from, and that an entry point is looked for in.
        digester: hashes the files.
        offline: look into the hub's local cache only.
        progress: told what is done.

    Raises:
        SourceError: there is no such file, folder or data set, or it cannot be read.
        UsageError: a file of no known format; no such subset or split.
        EnvironmentFault: the hub cannot be reached.
    """
    if spec.entry_point:
        folder = str(relative_to.resolve())
        words = f"samples of {spec.entry_point}"
        return DataPlace(kind="entry_point", folder=folder, files=(), digest="", revision=None, words=words)
    if spec.dataset:
        repo, _, revision = spec.dataset.partition("@")
        fetched = fetch_dataset(
            repo, revision or None, subset=spec.subset, split=spec.split, offline=offline, progress=progress
        )
        paths = [fetched.folder / name for name in fetched.files]
        return _place("files", fetched.folder, paths, digester, words=fetched.words, revision=fetched.commit)
    path = _existing(spec, relative_to)
    if path.is_dir():
        return _place("images", path.resolve(), image_files(path.resolve()), digester, words=f"images of {path.name}")
    if path.suffix.lower() not in READERS:
        raise UsageError(
            f"data: cannot tell what {path.name} is by its name",
            remedy=f"name it {', '.join(READERS)} by its format, or write an entry_point that reads it",
        )
    # The folder is resolved and the file is not: it keeps the suffix that it is named with.
    parent = path.parent.resolve()
    return _place("files", parent, [parent / path.name], digester, words=path.name)


def require_data(spec: DataSpec, relative_to: Path) -> None:
    """See that there is something where the spec says that data lie, before any work; the hub is not asked.

    Raises:
        SourceError: there is not.
    """
    if spec.path:
        _existing(spec, relative_to)


def require_data_unchanged(place: DataPlace, digester: Digester) -> None:
    """See that data files on the disk are still those whose digest was taken.

    Raises:
        SourceError: they were written to while they were read.
    """
    if place.kind == "entry_point":
        return
    folder = Path(place.folder)
    paths = image_files(folder) if place.kind == "images" else [folder / name for name in place.files]
    if not all(p.is_file() for p in paths) or _digest(folder, paths, digester) != place.digest:
        raise SourceError(f"{place.words} changed while they were read", remedy="wait, and run again")


def _existing(spec: DataSpec, relative_to: Path) -> Path:
    path = relative_to / spec.path
    if not path.exists():
        raise SourceError(f"data: there is no file or folder {path}", remedy="mend --data, or `path` under `data`")
    return path


def _place(
    kind: str, folder: Path, paths: list[Path], digester: Digester, *, words: str, revision: str | None = None
) -> DataPlace:
    files = tuple(p.relative_to(folder).as_posix() for p in paths)
    fields = {"kind": kind, "folder": str(folder), "files": files, "revision": revision, "words": words}
    return DataPlace.model_validate({**fields, "digest": _digest(folder, paths, digester)})


def _digest(folder: Path, paths: list[Path], digester: Digester) -> str:
    """Of the files, and of the images beside them where they name some."""
    named = [p for p in paths if names_images(p)]
    beside = [p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()] if named else []
    try:
        return digest_of_files(digester.entries(folder, [*paths, *beside], foreign=True))
    except OSError as error:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}", remedy="check its permissions") from error
