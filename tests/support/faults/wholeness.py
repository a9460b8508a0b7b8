"""What must hold on the disk at any moment, read without the code that wrote it; each breach is one line."""

from __future__ import annotations

import json
from pathlib import Path

from plansmith.records.release import Manifest

from .packages import file_entries


def repository_problems(root: Path) -> list[str]:
    """What is torn in a model repository, its releases and its views."""
    store = store_of(root)
    problems = []
    for release in store.glob("releases/*/*"):
        problems += [f"release {release.name}: {p}" for p in _release_problems(release)]
    for view in store.glob("views/*/*"):
        problems += [f"view {view.name}: {p}" for p in _view_problems(view, store / "releases" / view.parent.name)]
    for view in store.glob("views/*/*"):
        problems += [f"view {view.name}: {p}" for p in _part_problems(view, root)]
    for link in root.iterdir() if root.is_dir() else []:
        if not link.is_symlink() or not (link / "config.pbtxt").is_file():
            problems.append(f"Triton sees {link.name}, which is no link to a view")
    return problems


def cache_problems(cache: Path) -> list[str]:
    """What is torn in a stage cache."""
    problems = []
    for document in cache.glob("*/*/entry.json"):
        files = json.loads(document.read_text())["files"]
        entries = [entry.model_dump() for entry in file_entries(document.parent) if entry.path != document.name]
        problems += [] if files == entries else [f"entry {document.parent} is torn"]
    folders = {p for p in cache.glob("*/*") if p.parent.name not in {"staging", "locks"}}
    whole = {p.parent for p in cache.glob("*/*/entry.json")}
    return problems + [f"entry {folder} has no entry.json" for folder in sorted(folders - whole)]


def staging_problems(staging: Path) -> list[str]:
    """What killed processes left in a staging folder."""
    return [f"left in staging: {p.name}" for p in staging.iterdir() if p.name != ".lock"] if staging.is_dir() else []


def shown_versions(root: Path, model: str) -> tuple[int, ...]:
    """The versions that Triton sees."""
    return tuple(sorted(int(p.name) for p in (root / model).iterdir() if p.is_dir()))


def release_numbers(root: Path, model: str) -> tuple[int, ...]:
    """The numbers of a model's releases."""
    return tuple(sorted(int(p.name) for p in (store_of(root) / "releases" / model).glob("*")))


def store_of(root: Path) -> Path:
    """Where the releases of a repository lie."""
    return root.with_name(f"{root.name}.plansmith")


def _release_problems(release: Path) -> list[str]:
    try:
        manifest = _manifest(release)
    except (OSError, ValueError) as error:
        return [f"no manifest: {error}"]
    entries = {entry.path: entry for entry in file_entries(release)}
    problems = [f"{entry.path} is torn" for entry in manifest.files if entries.get(entry.path) != entry]
    if str(manifest.version) != release.name:
        problems.append(f"calls itself {manifest.version}")
    return problems


def _view_problems(view: Path, releases: Path) -> list[str]:
    numbers = sorted(int(p.name) for p in view.iterdir() if p.is_dir())
    if not numbers or not (view / "config.pbtxt").is_file():
        return [f"incomplete: {sorted(p.name for p in view.iterdir())}"]
    newest = releases / str(numbers[-1])
    problems = []
    if (view / "config.pbtxt").read_bytes() != (newest / "config.pbtxt").read_bytes():
        problems.append(f"its configuration is not that of version {newest.name}")
    for number in numbers:
        if file_entries(view / str(number)) != file_entries(releases / str(number) / "model"):
            problems.append(f"version {number} is torn")
        if _manifest(releases / str(number)).package.interface != _manifest(newest).package.interface:
            problems.append(f"version {number} does not fit the configuration")
    return problems


def _part_problems(view: Path, root: Path) -> list[str]:
    """Parts that a view needs, which is shown or was so last, and that Triton does not find, or not whole."""
    newest = max(int(p.name) for p in view.iterdir() if p.name.isdecimal())
    release = store_of(root) / "releases" / view.parent.name / str(newest)
    is_shown = (root / view.parent.name).resolve() == view.resolve()
    problems = []
    for member in _manifest(release).package.members if is_shown else ():
        link, source = root / member.model, release / member.folder
        names = {"config.pbtxt": "config.pbtxt", **{name: name for name in member.support_files}}
        names |= {f"{member.version}/{name}": f"model/{name}" for name in member.model_files}
        if not link.is_symlink():
            problems.append(f"part {member.model} is not there")
        problems += [
            f"{target} of part {member.model} is torn"
            for target, name in names.items()
            if not (link / target).is_file() or (link / target).read_bytes() != (source / name).read_bytes()
        ]
    return problems


def shown_parts(root: Path) -> list[str]:
    """The parts of ensembles that Triton sees, sorted."""
    return sorted(p.name for p in root.iterdir() if p.readlink().parent.parent.name == "members")


def _manifest(release: Path) -> Manifest:
    return Manifest.model_validate_json((release / "manifest.json").read_bytes())
