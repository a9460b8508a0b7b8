"""The keys of a store.

plansmith-store.json                  the marker
objects/<2 digits>/<SHA-256>          contents, whichever releases and cache entries they belong to
releases/<model>/<digest>.json        the files of a release, by name and SHA-256; written when all of them are there
models/<model>.json                   the catalogue: what makes releases visible, under numbers and aliases
live/<model>/<loader>.json            what a loader reports
repository/<model>/…                  what a Triton reads that reads the store itself
cache/…, timing/…                     shared by workers
leases/<name>.json                    who does a piece of work that several may do
turns/<key>/…                         who may change a document, where the server does not keep writers apart
probe/…                               for a moment, while it is seen what the server does
"""

from __future__ import annotations

from pathlib import PurePosixPath

from plansmith.errors import RepositoryError

MARKER_KEY = "plansmith-store.json"
OBJECTS = "objects/"
RELEASES = "releases/"
MODELS = "models/"
LIVE = "live/"
VIEW = "repository/"
LEASES = "leases/"
TURNS = "turns/"
PROBE = "probe/"

_SUFFIX = ".json"


def object_key(sha256: str) -> str:
    """Where a content lies."""
    return f"{OBJECTS}{sha256[:2]}/{sha256}"


def release_key(model: str, digest: str) -> str:
    """Where the list of a release's files lies."""
    return f"{RELEASES}{model}/{digest}{_SUFFIX}"


def catalogue_key(model: str) -> str:
    """Where what is known of a model lies."""
    return f"{MODELS}{model}{_SUFFIX}"


def live_key(model: str, loader: str) -> str:
    """Where a loader's report lies."""
    return f"{LIVE}{model}/{loader}{_SUFFIX}"


def lease_key(name: str) -> str:
    """Where it lies who does a piece of work; the name may hold slashes."""
    return f"{LEASES}{name}{_SUFFIX}"


def name_in(key: str) -> str:
    """The last part of a document's key: a model, digest or loader."""
    return key.rpartition("/")[2].removesuffix(_SUFFIX)


def require_inside(path: str, place: str) -> str:
    """See that a file's name from a store stays in the folder that it is put into.

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
