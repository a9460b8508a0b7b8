"""Signatures of a repository's releases: `model.sig` in a release, beside its manifest.

A signature covers every file of its release but itself. A release that was pulled under another number holds a manifest
and a report with that number; those that were signed are kept beside it, in R.plansmith/pulled/<model>/<n>.signed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from plansmith.errors import RepositoryError, SignatureError
from plansmith.records.release import CONFIG_FILE, MANIFEST_FILE, REPORT_FILE, SIGNATURE_FILE, Manifest
from plansmith.report.render import renumber
from plansmith.signing.policy import SignaturePolicy
from plansmith.signing.signer import Signer
from plansmith.signing.verification import SignatureStatus, check_signature, claimed_signer
from plansmith.system.digest import Digester
from plansmith.system.files import fsync_path, move_into_place, staging_folder, storage_errors
from plansmith.triton.repository.ensembles import bytecode_stops
from plansmith.triton.repository.release import damaged_file
from plansmith.triton.repository.repository import ModelRepository

NUMBERED_FILES = (MANIFEST_FILE, REPORT_FILE)
"""They tell a release's number."""

_PULL_AGAIN = "pull it again: plansmith pull"


def signed_originals(repository: ModelRepository, model: str, number: int) -> Path:
    """Return the folder of the numbered files as they were signed; it exists if the release was renumbered."""
    return repository.store / "pulled" / model / f"{number}.signed"


def signature_file(release: Path) -> Path:
    """Return the path of a release folder's signature, which exists if it is signed."""
    return release / SIGNATURE_FILE


def read_signature(release: Path) -> bytes | None:
    """Return the signature in a release folder; None if it is not signed."""
    try:
        return signature_file(release).read_bytes()
    except FileNotFoundError:
        return None


def local_signer(release: Path) -> str:
    """Return who signed a release folder according to its signature, which is not checked; empty if unsigned."""
    return claimed_signer(read_signature(release))


def sign_release(repository: ModelRepository, model: str, number: int, signer: Signer) -> str:
    """Sign a release, replacing its signature; return who signed.

    Raises:
        RepositoryError: the release is damaged, or was pulled from a store.
        SignatureError: the key, the token or Sigstore refuses.
    """
    with storage_errors(repository.root), repository.exclusive(model):
        files = require_signable(repository, model, number)
        signature = signer.sign(files, f"{model}-{number}")
        with staging_folder(repository.staging) as staged:
            (staged / SIGNATURE_FILE).write_bytes(signature)
            fsync_path(staged / SIGNATURE_FILE)
            move_into_place(staged / SIGNATURE_FILE, signature_file(repository.release(model, number)))
    return claimed_signer(signature)


def require_signable(repository: ModelRepository, model: str, number: int) -> dict[str, str]:
    """Return the SHA-256 of a release's files, all read again; require that they are as they were published.

    Raises:
        RepositoryError: they are not, or the release was pulled from a store.
    """
    marker = repository.marker()
    if marker is not None and marker.mirrors:
        raise RepositoryError(
            f"{repository.root} shows what {marker.mirrors} has, and signs nothing",
            remedy=f"sign {model} in the repository that it was compiled into, and publish it again",
        )
    release, digester = repository.release(model, number), _fresh_digester(repository)
    damaged = damaged_file(release, repository.manifest(model, number), digester)
    links = [path.relative_to(release).as_posix() for path in release.rglob("*") if path.is_symlink()]
    if damaged or links:
        problem = f"{damaged} is damaged" if damaged else f"{links[0]} is a link"
        raise RepositoryError(
            f"version {number} of {model} cannot be signed: {problem}", remedy="compile the model again"
        )
    return _digests(release, digester)


def release_status(
    repository: ModelRepository, model: str, number: int, policy: SignaturePolicy, digester: Digester | None = None
) -> SignatureStatus:
    """Verify the signature of a release in a repository against a policy.

    Args:
        repository: that has the release.
        model: its name.
        number: its version.
        policy: who may have signed it.
        digester: hashes its files; one that remembers nothing, and so reads every file, when None.
    """
    release, digester = repository.release(model, number), digester or _fresh_digester(repository)
    link = next((path.name for path in release.rglob("*") if path.is_symlink()), None)
    if link is not None:
        return SignatureStatus(state="invalid", problem=f"{link} is a link", remedy=f"{_PULL_AGAIN} {model}")
    files = _digests(release, digester)
    originals = signed_originals(repository, model, number)
    if originals.is_dir():
        changed = changed_number(originals, release, number)
        if changed is not None:
            problem = f"{changed} was changed after the release was pulled"
            return SignatureStatus(state="invalid", problem=problem, remedy=f"{_PULL_AGAIN} {model}")
        files |= _digests(originals, digester)
    return check_signature(read_signature(release), files, policy)


def require_shown_signed(repository: ModelRepository, model: str, policy: SignaturePolicy) -> None:
    """Require that a policy accepts what Triton is shown of a model.

    Raises:
        SignatureError: it does not.
    """
    status = shown_problem(repository, model, policy)
    if status is not None:
        raise SignatureError(f"it is refused: {status.problem}", remedy=status.remedy, model=model, step="signature")


def signature_obstacle(
    repository: ModelRepository, policy: SignaturePolicy | None, other: Callable[[str], str | None]
) -> Callable[[str], str | None]:
    """Return a check whether a policy accepts what Triton is shown of a model, and another check lets it be loaded.

    Args:
        repository: that Triton reads.
        policy: who must have signed it; None if nobody.
        other: says why a model cannot be loaded; None if it can.
    """

    def obstacle(model: str) -> str | None:
        status = shown_problem(repository, model, policy) if policy is not None else None
        return other(model) if status is None else f"signature: {status.problem}"

    return obstacle


def shown_problem(repository: ModelRepository, model: str, policy: SignaturePolicy) -> SignatureStatus | None:
    """Return why a policy does not accept what Triton is shown of a model; None if it does.

    The releases must be signed, and what Triton is shown must be theirs.
    """
    numbers = repository.views(model).shown()
    if not numbers or not set(numbers) <= set(repository.versions(model)):
        problem = "it is not signed: no release of plansmith's is behind it"
        return SignatureStatus(state="unsigned", problem=problem, remedy="have plansmith compile or pull it")
    for number in numbers:
        status = release_status(repository, model, number, policy)
        if status.state != "valid":
            return status.model_copy(update={"problem": f"version {number}: {status.problem}"})
    manifests = [repository.manifest(model, number) for number in numbers]
    stray = next(iter(repository.showing(model).strays(manifests[-1], manifests)), _foreign(repository, manifests))
    if stray is not None:
        problem = f"{stray} that Triton is shown is not the signed release's"
        return SignatureStatus(state="invalid", problem=problem, remedy=f"{_PULL_AGAIN} {model}")
    return None


def _foreign(repository: ModelRepository, manifests: Sequence[Manifest]) -> str | None:
    """Return a file that Triton is shown beside those of releases; None if there is none.

    Bytecode is none of a release's, and Python would run it in place of the signed source: what lies there is removed,
    and Python compiles it again.
    """
    newest = manifests[-1]
    known = {CONFIG_FILE, *newest.package.support_files}
    known |= {f"{manifest.version}/{name}" for manifest in manifests for name in manifest.package.model_files}
    shown = {newest.name: known}
    shown |= {part.model: {*part.shown, *bytecode_stops(part.shown)} for part in newest.package.members}
    return next((name for model, names in shown.items() for name in _strangers(repository.root / model, names)), None)


def _strangers(shown: Path, known: Collection[str]) -> Iterator[str]:
    """The files in a folder that Triton reads, but for known ones and for bytecode, which is removed."""
    folder = shown.resolve()
    for compiled in [path for path in folder.rglob("__pycache__") if path.is_dir() and not path.is_symlink()]:
        shutil.rmtree(compiled, ignore_errors=True)  # what stays is a stranger
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name not in known and (path.is_symlink() or not path.is_dir()):
            yield name


def _digests(folder: Path, digester: Digester) -> dict[str, str]:
    return {file.path: file.sha256 for file in digester.entries(folder) if file.path != SIGNATURE_FILE}


def _fresh_digester(repository: ModelRepository) -> Digester:
    """Return a digester that remembers nothing: whoever can change a file can change what is remembered of it."""
    return Digester(repository.store / "no-memo", read_only=True)


def changed_number(originals: Path, release: Path, number: int) -> str | None:
    """Return a renumbered release's file that differs from the signed one in more than its number; None if none does.

    Args:
        originals: the numbered files as they were signed.
        release: the release.
        number: its version there.
    """
    try:
        signed = Manifest.model_validate_json((originals / MANIFEST_FILE).read_bytes())
        expected = {MANIFEST_FILE: signed.model_copy(update={"version": number}).model_dump_json(indent=1)}
        page = originals / REPORT_FILE
        if page.is_file():
            expected[REPORT_FILE] = renumber(page.read_text(encoding="utf-8"), signed.version, number)
        changed = (name for name, text in expected.items() if (release / name).read_text(encoding="utf-8") != text)
        return next(changed, None)
    except (OSError, ValueError):
        return MANIFEST_FILE
