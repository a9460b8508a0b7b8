"""Object keys of a store.

plansmith-store.json                  the marker
objects/<2 digits>/<SHA-256>          contents, whichever releases and cache entries they belong to
releases/<model>/<digest>.json        the files of a release, by name and SHA-256; written when all of them are there
models/<model>.json                   the catalogue: what makes releases visible, under numbers and aliases
bases/<model>.json                    what the newest release was made from
live/<model>/<loader>.json            what a loader reports
repository/<model>/…                  what a Triton reads that reads the store itself
views/<model>.json                    which alias is shown there
cache/<step>/<key>.json               a finished step, as `local` has it: its record, and its files by SHA-256
timing/<key>/<SHA-256>                what builds of a kind measured, as `timing_cache` has it
leases/<name>.json                    who does a piece of work that several may do
turns/<key>/…                         who may change a document, where the server does not keep writers apart
probe/…                               for a moment, while it is seen what the server does
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from plansmith.errors import RepositoryError

MARKER_KEY = "plansmith-store.json"
OBJECTS = "objects/"
RELEASES = "releases/"
MODELS = "models/"
BASES = "bases/"
LIVE = "live/"
VIEW = "repository/"
VIEWS = "views/"
CACHE = "cache/"
TIMING = "timing/"
LEASES = "leases/"
TURNS = "turns/"
PROBE = "probe/"

GRACE_SECONDS = 24 * 3600.0
"""Contents and lists that are younger than this are never removed: a publication may be about to need them. Those of a
version stay for as long after it was pruned: a reader may have found it before."""

_SUFFIX = ".json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def object_key(sha256: str) -> str:
    """Return the key of a content object.

    Raises:
        RepositoryError: that is no SHA-256.
    """
    return f"{OBJECTS}{sha256[:2]}/{_digest(sha256)}"


def release_key(model: str, digest: str) -> str:
    """Return the key of a release's file list.

    Raises:
        RepositoryError: that is no model's name, or no digest.
    """
    return f"{RELEASES}{_name(model)}/{_digest(digest)}{_SUFFIX}"


def catalogue_key(model: str) -> str:
    """Return the key of a model's catalogue.

    Raises:
        RepositoryError: that is no model's name.
    """
    return f"{MODELS}{_name(model)}{_SUFFIX}"


def fingerprint_key(model: str) -> str:
    """Return the key of the fingerprint of a model's newest release.

    Raises:
        RepositoryError: that is no model's name.
    """
    return f"{BASES}{_name(model)}{_SUFFIX}"


def live_key(model: str, loader: str) -> str:
    """Return the key of a loader's report.

    Raises:
        RepositoryError: that is no model's name, or no loader's.
    """
    return f"{LIVE}{_name(model)}/{_name(loader)}{_SUFFIX}"


def lease_key(name: str) -> str:
    """Return the key of a lease; the name may contain slashes."""
    return f"{LEASES}{name}{_SUFFIX}"


def view_key(model: str) -> str:
    """Return the key of the record of which alias the store's repository shows for a model.

    Raises:
        RepositoryError: that is no model's name.
    """
    return f"{VIEWS}{_name(model)}{_SUFFIX}"


def entry_key(step: str, key: str) -> str:
    """Return the key of a cached step."""
    return f"{CACHE}{step}/{key}{_SUFFIX}"


def timing_key(name: str, sha256: str = "") -> str:
    """Return the key of a timing cache file; without a digest, the common prefix of all of them."""
    return f"{TIMING}{name}/{sha256}"


def is_sha256(text: str) -> bool:
    """Whether a text is a SHA-256 in the form that keys use."""
    return _SHA256.fullmatch(text) is not None


def name_in(key: str) -> str:
    """Return the last part of a document's key: a model, digest or loader."""
    return key.rpartition("/")[2].removesuffix(_SUFFIX)


def require_inside(path: str, place: str) -> str:
    """Require that a file name from a store stays inside its destination folder.

    Args:
        path: relative, with / between its parts, as FileEntry has it.
        place: where it was read, for the message.

    Raises:
        RepositoryError: it does not, or is no plain name.
    """
    pure = PurePosixPath(path)
    plain = path == pure.as_posix() and path.isprintable() and not {"\\", ":"} & set(path)
    if pure.is_absolute() or {"", ".", ".."} & set(path.split("/")) or not plain:
        raise RepositoryError(
            f"{place} names a file {path!r}, which would lie outside of its release",
            remedy="do not use this store: it was not written by plansmith, or tampered with",
        )
    return path


def _name(text: str) -> str:
    """Validate a name as one key segment that cannot lead elsewhere."""
    if not _NAME.fullmatch(text):
        raise RepositoryError(
            f"{text!r} is no name: that has at most 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit",
            remedy="list the models: plansmith versions --store PLACE",
        )
    return text


def _digest(text: str) -> str:
    if not is_sha256(text):
        raise RepositoryError(
            f"{text!r} stands where a SHA-256 should", remedy="see what else is damaged: plansmith verify --store PLACE"
        )
    return text
