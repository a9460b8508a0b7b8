"""Data sets of a spec: located, downloaded and hashed in the parent process, without reading a sample."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from plansmith.config.data import CONVERTED, DataSpec
from plansmith.config.yaml_loading import load_yaml
from plansmith.data.reader import READERS, DataPlace, names_images
from plansmith.data.tables import SUFFIXES, image_files
from plansmith.errors import EnvironmentFault, SourceError, UsageError
from plansmith.sources.hub import hub_errors, reporting_bar
from plansmith.system.digest import Digester, digest_of_files

_INSTEAD = "download it elsewhere and say `path` under `data`"
_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt")
_NO_DATA = re.compile(
    r"dataset_infos?\.json|state\.json|metadata\.json|requirements\.txt|licen[cs]e\.txt", re.IGNORECASE
)
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}(-\w+)?")
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WANTED = ("validation", "test", "train")
"""Labels of a test split are often withheld, and the train split is what the model has seen."""


@dataclass(frozen=True)
class FetchedData:
    """Downloaded split: its files below a folder, their commit, and its display name."""

    folder: Path
    files: tuple[str, ...]
    commit: str
    description: str


def fetch_dataset(
    repo: str,
    revision: str | None,
    *,
    subset: str,
    split: str,
    offline: bool,
    progress: Callable[[str], None],
) -> FetchedData:
    """Resolve a data set to a commit and download the files of one split.

    Args:
        repo: its id.
        revision: a branch, tag or commit; the newest when None.
        subset: the configuration; the only one or "default" when empty.
        split: validation, test or train, the first there is, when empty.
        offline: look into the local cache only.
        progress: told what is done.

    Raises:
        SourceError: no such data set or revision, no access, or no files that can be read.
        UsageError: no such subset or split.
        EnvironmentFault: the hub cannot be reached and the local cache does not hold the split.
    """
    progress(f"asking the hub for {repo}")
    folder, listed = _listing(repo, revision, offline)
    splits = find_splits(listed, _card(folder))
    if not splits and revision is None:
        folder, listed = _converted(repo, offline)
        splits = find_splits(listed, {})
    if not splits:
        raise SourceError(
            f"the data set {repo} has no files that can be read ({', '.join(_SUFFIXES)})"
            + (f" at {revision}" if revision else ""),
            remedy=f"name another, or {_INSTEAD}",
        )
    chosen = _pick_subset(splits, subset, repo)
    name = _pick_split(splits[chosen], split, repo)
    files = splits[chosen][name]
    _download(repo, folder.name, files, offline, progress)
    description = f"{repo}{f', {chosen}' if len(splits) > 1 else ''}, {name} split"
    return FetchedData(folder, files, folder.name, description)


def find_splits(files: Sequence[str], card: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Find the files of every split of every subset.

    Args:
        files: all of the data set.
        card: the head of its README, whose `configs` say it where they are given; else the files' names do.
    """
    data = [
        f for f in sorted(files) if PurePosixPath(f).suffix in _SUFFIXES and not _NO_DATA.fullmatch(f.split("/")[-1])
    ]
    splits_by_subset: dict[str, dict[str, list[str]]] = {}
    configs = card.get("configs")
    for subset, split, path in _card_files(configs, data) if isinstance(configs, list) else _guessed(data):
        splits_by_subset.setdefault(subset, {}).setdefault(split, []).append(path)
    return {
        subset: {split: _one_format(paths) for split, paths in splits.items()}
        for subset, splits in splits_by_subset.items()
    }


def _card_files(configs: Sequence[Any], files: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return subset, split and path as in the dataset card."""
    rows = []
    for config in configs:
        entries = config.get("data_files", []) if isinstance(config, dict) else []
        entries = entries if isinstance(entries, list) else [entries]
        for entry in entries:
            data_file = entry if isinstance(entry, dict) else {"split": "train", "path": entry}
            patterns = data_file.get("path", [])
            for pattern in patterns if isinstance(patterns, list) else [patterns]:
                full = str(PurePosixPath(config.get("data_dir", "")) / str(pattern))
                rows += [
                    (str(config.get("config_name", "default")), str(data_file.get("split", "train")), path)
                    for path in files
                    if fnmatch.fnmatchcase(path, full.replace("**/", "*"))
                ]
    return rows


def _guessed(files: Sequence[str]) -> list[tuple[str, str, str]]:
    """Guess subset, split and path from file and folder names; without a sign of a split, all is train."""
    return [(_subset_of(path), _split_of(path), path) for path in files]


def _split_of(path: str) -> str:
    place = PurePosixPath(path)
    stem = place.name.partition(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard:
        return _WORDS.get(shard[1], shard[1])
    if stem.isdecimal() and len(place.parts) > 2:
        return _WORDS.get(place.parent.name, place.parent.name)
    for part in (stem, *reversed(place.parts[:-1])):
        word = next((_WORDS[w] for w in re.split(r"[^a-z]+", part.casefold()) if w in _WORDS), None)
        if word:
            return word
    return "train"


def _subset_of(path: str) -> str:
    parents = PurePosixPath(path).parts[:-1]
    return next((p for p in parents if p != "data" and p.casefold() not in _WORDS), "default")


def _one_format(paths: Sequence[str]) -> tuple[str, ...]:
    """Return files of one format: the same data often exist in several; the first supported one counts."""
    unique = list(dict.fromkeys(paths))
    best = min((PurePosixPath(p).suffix for p in unique), key=_SUFFIXES.index)
    return tuple(p for p in unique if PurePosixPath(p).suffix == best)


def _pick_subset(splits: Mapping[str, Any], subset: str, repo: str) -> str:
    if subset in splits:
        return subset
    if not subset and (len(splits) == 1 or "default" in splits):
        return "default" if "default" in splits else next(iter(splits))
    raise UsageError(
        f"data: {repo} has {f'no subset {subset!r}' if subset else f'{len(splits)} subsets'}",
        remedy=f"set `subset` under `data` to one of {_shortened(splits)}",
    )


def _pick_split(splits: Mapping[str, Any], split: str, repo: str) -> str:
    candidates = (split, _WORDS.get(split, split)) if split else _WANTED
    choice = next((name for name in candidates if name in splits), None)
    if choice is None and not split:
        choice = next(iter(splits))
    if choice is None:
        raise UsageError(
            f"data: {repo} has no split {split!r}", remedy=f"set `split` under `data` to one of {_shortened(splits)}"
        )
    return choice


def _shortened(names: Mapping[str, Any]) -> str:
    shown = list(names)[:12]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _listing(repo: str, revision: str | None, offline: bool) -> tuple[Path, list[str]]:
    """Return the local cache folder of a commit, which may still be empty, and all file names."""
    with hub_errors("data set", repo, revision, _INSTEAD, offline=offline):
        from huggingface_hub import HfApi, is_offline_mode, snapshot_download

        folder = Path(
            snapshot_download(
                repo, repo_type="dataset", revision=revision, allow_patterns=["README.md"], local_files_only=offline
            )
        )
        if not (offline or is_offline_mode()):
            try:
                # Not list_repo_files, which tries for 20 seconds to reach a hub that is not there.
                siblings = HfApi().dataset_info(repo, revision=folder.name).siblings
                return folder, [sibling.rfilename for sibling in siblings or ()]
            except Exception as error:
                # The client has no common class for lines that are down; the cache may do without the hub.
                if not _cached(folder):
                    raise EnvironmentFault(
                        f"the hub did not list the files of {repo}: {error}", remedy="try again", transient=True
                    ) from error
    return folder, _cached(folder)


def _converted(repo: str, offline: bool) -> tuple[Path, list[str]]:
    """Like `_listing`, for the hub's own converted copy; no files if it has none."""
    try:
        return _listing(repo, CONVERTED, offline)
    except SourceError:
        return Path(), []


def _cached(folder: Path) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []


def _card(folder: Path) -> dict[str, Any]:
    """Return the metadata header of the README; empty if there is none that can be read."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    if not text.startswith("---"):
        return {}
    try:
        head = load_yaml(text.removeprefix("---").split("\n---", 1)[0])
    except (yaml.YAMLError, ValueError):
        return {}
    return head if isinstance(head, dict) else {}


def _download(repo: str, commit: str, files: Sequence[str], offline: bool, progress: Callable[[str], None]) -> None:
    with hub_errors("data set", repo, commit, _INSTEAD, offline=offline):
        from huggingface_hub import snapshot_download

        # A name may hold what patterns mean otherwise.
        patterns = [re.sub(r"([*?\[])", r"[\1]", name) for name in files]
        snapshot_download(
            repo,
            repo_type="dataset",
            revision=commit,
            allow_patterns=patterns,
            local_files_only=offline,
            tqdm_class=reporting_bar(progress),
        )


def find_data(
    spec: DataSpec,
    *,
    relative_to: Path,
    digester: Digester,
    offline: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> DataPlace:
    """Find data; downloads data of the Hub.

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
        description = f"samples of {spec.entry_point}"
        return DataPlace(kind="entry_point", folder=folder, files=(), digest="", revision=None, words=description)
    if spec.dataset:
        repo, _, revision = spec.dataset.partition("@")
        fetched = fetch_dataset(
            repo, revision or None, subset=spec.subset, split=spec.split, offline=offline, progress=progress
        )
        paths = [fetched.folder / name for name in fetched.files]
        return _place(
            "files", fetched.folder, paths, digester, description=fetched.description, revision=fetched.commit
        )
    path = _existing(spec, relative_to)
    if path.is_dir():
        return _place(
            "images", path.resolve(), image_files(path.resolve()), digester, description=f"images of {path.name}"
        )
    if path.suffix.lower() not in READERS:
        raise UsageError(
            f"data: cannot tell what {path.name} is by its name",
            remedy=f"name it {', '.join(READERS)} by its format, or write an entry_point that reads it",
        )
    # The folder is resolved and the file is not: it keeps the suffix that it is named with.
    parent = path.parent.resolve()
    return _place("files", parent, [parent / path.name], digester, description=path.name)


def require_data(spec: DataSpec, relative_to: Path) -> None:
    """Require, before any work, that the spec's data exists; makes no request to the Hub.

    Raises:
        SourceError: there is not.
    """
    if spec.path:
        _existing(spec, relative_to)


def require_data_unchanged(place: DataPlace, digester: Digester) -> None:
    """Require that data files on disk still match their digest.

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
    kind: str, folder: Path, paths: list[Path], digester: Digester, *, description: str, revision: str | None = None
) -> DataPlace:
    files = tuple(p.relative_to(folder).as_posix() for p in paths)
    fields = {"kind": kind, "folder": str(folder), "files": files, "revision": revision, "words": description}
    return DataPlace.model_validate({**fields, "digest": _digest(folder, paths, digester)})


def _digest(folder: Path, paths: list[Path], digester: Digester) -> str:
    """Return a digest of the files, and of the images next to them if they refer to any."""
    named = [p for p in paths if names_images(p)]
    beside = [p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()] if named else []
    try:
        return digest_of_files(digester.entries(folder, [*paths, *beside], foreign=True))
    except OSError as error:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}", remedy="check its permissions") from error
