"""Repository layout rules: models, versions, configurations; `layout.*`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from plansmith.records.release import CONFIG_FILE
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder
from plansmith.triton.checker.reader import (
    ENSEMBLE,
    LARGEST,
    NO_VERSIONS,
    files_of,
    folders_of,
    hides_model_file,
    is_foreign,
    is_like_a_config,
    is_model_file,
    is_plain,
    looks_like_version,
    version_of,
    versions_to_load,
)

_LIFECYCLE = "core: src/model_repository_manager/model_lifecycle.cc, VersionsToLoad"
_POLL = "core: src/model_repository_manager/model_repository_manager.cc, Poll"
_LOCAL = "core: src/filesystem/implementations/local.h"
_SEEN = "Triton 2.51 was seen to do so"

NO_MODEL = Rule("layout.no-model", "warning", "a repository holds at least one model", _POLL)
NOT_A_MODEL = Rule(
    "layout.not-a-model",
    "error",
    "every folder of a repository is a model: Triton takes hidden ones and empty ones for models, too",
    f"{_POLL}; {_SEEN}",
)
UNREADABLE = Rule("layout.unreadable", "error", "the folders of models and versions can be read", _LOCAL)
DANGLING = Rule(
    "layout.dangling-link",
    "error",
    "no link in a repository, or in a model's folder, leads to nothing: Triton then reads nothing of the folder",
    f"{_LOCAL}, GetDirectorySubdirs; {_SEEN}",
)
NO_VERSION = Rule("layout.no-version", "error", "a model has a version: a folder that is named by a number", _LIFECYCLE)
VERSION_NAME = Rule(
    "layout.version-name",
    "error",
    "the name of a version that is loaded is a plain number, under which Triton finds its folder",
    f"{_LIFECYCLE}: digits that a name begins with count as its number; {_SEEN}",
)
VERSION_NUMBER = Rule(
    "layout.version-number",
    "error",
    f"no number that a folder's name begins with is above {LARGEST}: it ends the server, whatever else that serves",
    f"{_LIFECYCLE}, an exception of std::stoll that nothing catches; {_SEEN}",
)
IGNORED_VERSION = Rule(
    "layout.ignored-version",
    "warning",
    "no folder of a model looks like a version that Triton passes over: one with a leading zero or another name",
    _LIFECYCLE,
)
NONE_CHOSEN = Rule(
    "layout.no-version-chosen", "error", "the version policy chooses a version that is there", f"{_LIFECYCLE}; {_SEEN}"
)
ABSENT_VERSION = Rule(
    "layout.absent-version", "warning", "every version that the version policy names is there", f"{_LIFECYCLE}; {_SEEN}"
)
MODEL_NAME = Rule(
    "layout.model-name",
    "warning",
    "a model's name has only characters that stand for themselves in an address",
    "server: src/http_server.cc matches names in paths as they are sent; 2.51 was seen not to find 'with%20space'",
)
CONFIG_NAME = Rule(
    "layout.config-name",
    "warning",
    f"a model's configuration is the file {CONFIG_FILE} in its folder: Triton passes over all others",
    f"{_POLL}; {_SEEN}",
)
FIRST_FOLDER = Rule(
    "layout.first-folder",
    "error",
    "where no configuration names the backend, the first folder of a model by name holds the model's file",
    "core: src/model_config_utils.cc, AutoCompleteBackendFields, looks into no other; 2.51 was seen to refuse a"
    " model that has .ipynb_checkpoints beside its version",
)
RULES: tuple[Rule, ...] = (
    NO_MODEL,
    NOT_A_MODEL,
    UNREADABLE,
    DANGLING,
    NO_VERSION,
    VERSION_NAME,
    VERSION_NUMBER,
    IGNORED_VERSION,
    NONE_CHOSEN,
    ABSENT_VERSION,
    MODEL_NAME,
    CONFIG_NAME,
    FIRST_FOLDER,
)

_ADDRESSABLE = re.compile(r"[A-Za-z0-9_.~-]+")


def check_whole(surroundings: CheckContext) -> Iterator[Finding]:
    """Yield problems with the repository folder itself."""
    if not surroundings.models:
        yield NO_MODEL.broken(
            "there is no model: a model is a folder in the repository",
            model="",
            place=".",
            remedy="name the folder that holds the models' folders",
        )
    yield from _dangling(surroundings.root, "", "")
    if (surroundings.root / CONFIG_FILE).exists() and not surroundings.is_for_sagemaker:
        yield CONFIG_NAME.broken(
            f"Triton does not read a {CONFIG_FILE} beside the models' folders",
            model="",
            place=CONFIG_FILE,
            remedy="move it into the folder of its model, or away",
        )


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield problems with the layout of a model's folder."""
    if not os.access(model.path, os.R_OK | os.X_OK):
        yield UNREADABLE.broken(
            "the folder cannot be read", model=model.name, place=model.name, remedy=f"chmod -R a+rX {model.typed()}"
        )
        return
    yield from _dangling(model.path, model.name, f"{model.name}/")
    yield from _name(model)
    yield from _misnamed_configs(model)
    if is_foreign(model):
        if surroundings.loads(model.name):
            yield _no_model(model)
        return
    yield from _versions(model)
    yield from _first_folder(model)


def _no_model(model: ModelFolder) -> Finding:
    return NOT_A_MODEL.broken(
        "Triton takes this folder for a model, and it has neither a configuration nor a version",
        model=model.name,
        place=model.name,
        remedy="move it out of the repository; where that cannot be, start Triton with --model-control-mode=explicit"
        " and a --load-model=NAME for each model, and tell this check by --server-argument",
    )


def _dangling(folder: Path, model: str, prefix: str) -> Iterator[Finding]:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_symlink() and not entry.exists())
    except OSError:
        return
    for name in names:
        yield DANGLING.broken(
            f"{name} is a link to {(folder / name).readlink()}, where nothing is",
            model=model,
            place=f"{prefix}{name}",
            remedy="remove the link, or put back what it leads to (in a container: mount that folder, too)",
        )


def _name(model: ModelFolder) -> Iterator[Finding]:
    if not _ADDRESSABLE.fullmatch(model.name) and not is_foreign(model):
        yield MODEL_NAME.broken(
            f"clients cannot ask for {model.name!r} over HTTP: it has characters that addresses write in another way",
            model=model.name,
            place=model.name,
            remedy="rename the folder (and `name` in its configuration) to letters, digits, '_', '-' and '.'",
        )


def _misnamed_configs(model: ModelFolder) -> Iterator[Finding]:
    for folder, where in ((model.path, ""), *((path, f"{number}/") for number, path in model.versions.items())):
        for name in sorted(files_of(folder)):
            if is_like_a_config(name) and (where or (name != CONFIG_FILE and not model.text)):
                yield CONFIG_NAME.broken(
                    f"Triton does not read {where}{name}: the configuration is {CONFIG_FILE} in the model's folder",
                    model=model.name,
                    place=model.place(f"{where}{name}"),
                    remedy=f"move it to {model.place(CONFIG_FILE)}, or away",
                )


def _versions(model: ModelFolder) -> Iterator[Finding]:
    names = [folder.name for folder in folders_of(model.path)]
    numbers = {name: number for name in names if (number := version_of(name)) is not None}
    beyond = [name for name, number in numbers.items() if number > LARGEST]
    for name in beyond:
        yield VERSION_NUMBER.broken(
            f"the number that {name} begins with is larger than any version can be; it ends the server",
            model=model.name,
            place=model.place(name),
            remedy="give the folder a smaller number, or move it out of the model's folder",
        )
    if beyond:
        return
    yield from _ignored(model, names)
    if not numbers:
        yield _no_version(model)
        return
    chosen = versions_to_load(model.config, numbers.values())
    for name, number in numbers.items():
        if number in chosen and number not in model.versions and not is_plain(name):
            yield VERSION_NAME.broken(
                f"Triton takes {name} for version {number} and then looks for it in a folder"
                f" {number if number >= 0 else 'of another number'}, which is not there",
                model=model.name,
                place=model.place(name),
                remedy=f"rename it to {max(number, 1)}, or move it out of the model's folder",
            )
    yield from _policy(model, chosen)


def _ignored(model: ModelFolder, names: list[str]) -> Iterator[Finding]:
    for name in names:
        if version_of(name) is None and name not in NO_VERSIONS and looks_like_version(model.path / name):
            yield IGNORED_VERSION.broken(
                f"Triton passes over {name}: a version is named by a plain number without leading zeros",
                model=model.name,
                place=model.place(name),
                remedy="rename it to the number of the version, or move it out of the model's folder",
            )


def _no_version(model: ModelFolder) -> Finding:
    loose = sorted(name for name in files_of(model.path) if is_model_file(name))
    if loose:
        remedy = f"make the folder {model.place('1')} and move {', '.join(loose)} into it"
    elif model.platform == ENSEMBLE:
        remedy = f"make the folder {model.place('1')}: an ensemble's version may be empty, but must be there"
    else:
        remedy = f"put the model's files into {model.place('1')}"
    return NO_VERSION.broken(
        "there is no version: no folder that is named by a number", model=model.name, place=model.name, remedy=remedy
    )


def _policy(model: ModelFolder, chosen: tuple[int, ...]) -> Iterator[Finding]:
    named = set(model.config.version_policy.specific.versions) if model.config is not None else set()
    line = model.line_of("version_policy")
    listed = ", ".join(map(str, model.versions)) or "none"
    if not chosen:
        yield NONE_CHOSEN.broken(
            f"the version policy chooses none of the versions that are there ({listed})",
            model=model.name,
            place=model.place(),
            line=line,
            remedy="version_policy { latest { num_versions: 1 } }, or name versions that are there",
        )
        return
    absent = sorted(named - set(model.versions))
    if absent:
        yield ABSENT_VERSION.broken(
            f"the version policy names {', '.join(map(str, absent))}, which is not there; there is {listed}",
            model=model.name,
            place=model.place(),
            line=line,
            remedy="add the version's folder, or take it out of version_policy",
        )


def _first_folder(model: ModelFolder) -> Iterator[Finding]:
    if hides_model_file(model):
        first = folders_of(model.path)[0].name
        yield FIRST_FOLDER.broken(
            f"to find out what serves the model, Triton looks into {first} alone, its first folder by name",
            model=model.name,
            place=model.place(first),
            remedy='remove that folder, or write backend: "…" into the configuration',
        )
