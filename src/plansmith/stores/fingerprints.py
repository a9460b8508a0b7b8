"""What the newest release of a model was made from, noted in a store for those who do not share its repository."""

from __future__ import annotations

from plansmith.records.fingerprint import Fingerprint
from plansmith.records.model import SCHEMA_VERSION, Record
from plansmith.stores.backend.documents import content_of, read_document
from plansmith.stores.layout import fingerprint_key
from plansmith.stores.store import Store


class StoredFingerprint(Record):
    """The note of a model; `digest`: its release's in this store."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    basis: Fingerprint


def write_fingerprint(store: Store, model: str, digest: str, basis: Fingerprint) -> None:
    """Note what a release was made from, in the place of what was noted before.

    Args:
        store: has the release.
        model: its name.
        digest: of the release there.
        basis: what it was made from.
    """
    store.objects.put(fingerprint_key(model), content_of(StoredFingerprint(digest=digest, basis=basis)))


def read_fingerprint(store: Store, model: str) -> Fingerprint | None:
    """What the release was made from that was noted last; None where nobody noted it, or its files do not stand.

    Raises:
        RepositoryError: a document is damaged, or of another version of plansmith.
        EnvironmentFault: the store cannot be asked.
    """
    noted = read_document(store.objects, fingerprint_key(model), StoredFingerprint)
    if noted is None or noted.schema_version != SCHEMA_VERSION:
        return None
    catalogue = store.known(model)
    standing = {version.digest for version in catalogue.standing()} if catalogue is not None else set()
    return noted.basis if noted.digest in standing else None
