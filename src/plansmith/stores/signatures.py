"""Signatures of published releases, as a store's policy and a machine's require them."""

from __future__ import annotations

from plansmith.signing.policy import SignaturePolicy
from plansmith.signing.verification import SignatureStatus, check_signature, require_signature
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.reader import read_signature
from plansmith.stores.records import StoredRelease
from plansmith.stores.store import Store


def stored_status(objects: Objects, release: StoredRelease, policy: SignaturePolicy) -> SignatureStatus:
    """Verify the signature of a published release by its list of files, whose contents are checked by who fetches them.

    Raises:
        RepositoryError: the signature is lost or damaged in the store.
        EnvironmentFault: Sigstore's trusted root cannot be fetched.
    """
    files = {file.path: file.sha256 for file in release.files}
    return check_signature(read_signature(objects, release), files, policy)


def require_signed(store: Store, release: StoredRelease, number: int, policy: SignaturePolicy | None = None) -> None:
    """Require that the store's policy, and another one where it is given, accept a release.

    Raises:
        SignatureError: one does not.
    """
    for required in filter(None, (store.signatures, policy)):
        require_signature(stored_status(store.objects, release, required), release.model, number)
