"""Digests of a release in the form that model-signing signs and compares: a manifest of files and their SHA-256."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from plansmith.records.release import SIGNATURE_FILE

if TYPE_CHECKING:
    from model_signing.hashing import Config


def hashing_of(files: Mapping[str, str], name: str, asked: Callable[[], object] = lambda: None) -> Config:
    """Return a hashing configuration that answers with digests which are known already, instead of reading a folder.

    Whoever verifies the folder with model-signing itself reads in the signature that model.sig is not covered.

    Args:
        files: SHA-256 by path in the release, of all its files but the signature.
        name: of the release, for whoever reads the signature.
        asked: called when the digests are asked for, which a verification does after it has verified who signed.
    """
    from model_signing import hashing, manifest
    from model_signing._hashing.hashing import Digest  # the library has no public name for it

    serialization = manifest.SerializationType.from_args(
        {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [SIGNATURE_FILE]}
    )
    items = [
        manifest.FileManifestItem(path=PurePosixPath(path), digest=Digest("sha256", bytes.fromhex(sha256)))
        for path, sha256 in files.items()
        if path != SIGNATURE_FILE
    ]

    class KnownDigests(hashing.Config):
        """Digests that were computed before."""

        def hash(self, *_: Any, **__: Any) -> manifest.Manifest:
            """Return the manifest of the digests, wherever the folder is."""
            asked()
            return manifest.Manifest(name, items, serialization)

    return KnownDigests()  # type: ignore[no-untyped-call]
