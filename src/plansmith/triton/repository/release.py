"""Release: its manifest, file integrity, and comparison with another release."""

from __future__ import annotations

import json
from pathlib import Path

from plansmith.config.triton.options import Latest, VersionPolicy
from plansmith.errors import RepositoryError, first_line
from plansmith.records.model import BATCH
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import MANIFEST_FILE, MODEL_FOLDER, Interface, Manifest, Package
from plansmith.system.digest import Digester


def engine_folder(release: Path, manifest: Manifest) -> Path:
    """Return the folder of the model's own files in a release, which may be one part of several."""
    own = next((release / member.folder for member in manifest.package.members if member.part == MODEL_PART), release)
    return own / MODEL_FOLDER / manifest.engine.inner_folder


def read_manifest(release: Path) -> Manifest:
    """Read the manifest of a release folder.

    Raises:
        RepositoryError: the folder is no release, or its manifest is damaged.
    """
    path = release / MANIFEST_FILE
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise RepositoryError(
            f"{release} is no release: it has no {MANIFEST_FILE}", remedy="name a release folder"
        ) from error
    except ValueError as error:
        raise RepositoryError(
            f"{path} is damaged: {first_line(error)}",
            remedy=f"move {release} away and compile the model again",
        ) from error


def misfit(manifest: Manifest, newest: Manifest) -> str | None:
    """Return why a release cannot be served with the newest one's configuration; None if it can.

    Of a model, Triton serves no version at all where one of those that its configuration has it load does not load, and
    one of a smaller batch would be asked for more than it takes.
    """
    version, own, its = f"version {newest.version}", manifest.package, newest.package
    same: dict[str, tuple[object, object]] = {
        "inputs or outputs": ((own.interface, own.reshaped), (its.interface, its.reshaped)),
        "files": (own.named_files, its.named_files),
        "parts": (_parts(manifest), _parts(newest)),
        # They share what lies beside the newest configuration.
        "Python packages": (_environment(own), _environment(its)),
    }
    for label, (mine, theirs) in same.items():
        if mine != theirs:
            return f"other {label} than {version}"
    if own.max_batch_size < its.max_batch_size:
        return f"its largest batch is {own.max_batch_size}, and {its.max_batch_size} in {version}"
    if _profiles(manifest) < _profiles(newest):
        return f"fewer optimization profiles than {version}"
    return None


def policy_of(manifest: Manifest | None) -> VersionPolicy:
    """Return a release's version policy: which shown versions Triton serves; the default one if it sets none."""
    setting = manifest.spec.get("triton", {}).get("version_policy") if manifest is not None else None
    return VersionPolicy.model_validate(setting) if setting else VersionPolicy(latest=Latest())


def _parts(manifest: Manifest) -> set[str]:
    """The names of the models that an ensemble calls, which are derived from their content."""
    return {member.model for member in manifest.package.members}


def _environment(package: Package) -> object:
    """The Python version and distributions of a release that ships its own environment."""
    record = package.environment
    return record and (record.python, record.distributions)


def _profiles(manifest: Manifest) -> int:
    """The number of optimization profiles; 1 where the build has none."""
    build = manifest.engine.build
    return max(1, len(build.profiles)) if build is not None else 1


def require_same_interface(newest: Manifest, draft: Manifest) -> None:
    """Require that a draft has the same interface for clients as the newest version.

    Raises:
        RepositoryError: names every input and output that differs.
    """
    old, new = newest.package.interface, draft.package.interface
    differences = interface_differences(old, new)
    if not differences:
        return
    raise RepositoryError(
        f"the inputs or outputs differ from version {newest.version}'s: {'; '.join(differences)}",
        remedy="clients of the old interface would break; pass --allow-interface-change or another --name",
    )


def interface_differences(old: Interface, new: Interface) -> list[str]:
    """Return the differences between two interfaces that would break clients; none if they are equal."""
    if old == new:
        return []
    before = {t.name: t for t in (*old.inputs, *old.outputs)}
    after = {t.name: t for t in (*new.inputs, *new.outputs)}
    lines = [f"{name} is gone" for name in sorted(before.keys() - after.keys())]
    lines += [f"{name} is new" for name in sorted(after.keys() - before.keys())]
    lines += [
        f"{name} was {before[name].dtype}{list(before[name].dims)}, is {after[name].dtype}{list(after[name].dims)}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    return lines or ["their order"]


def narrowings(before: Manifest, after: Manifest) -> list[str]:
    """Return what a release is made for less of than another: ranges of common axes, and batches."""
    axes = [(axis, old, after.onnx.axes[axis]) for axis, old in before.onnx.axes.items() if axis in after.onnx.axes]
    lines = [
        f"{axis} {new.min} to {new.max} instead of {old.min} to {old.max}"
        for axis, old, new in axes
        if axis != BATCH and (new.min > old.min or new.max < old.max)
    ]
    largest, former = after.package.max_batch_size, before.package.max_batch_size
    return [*lines, *([f"batches of {largest} instead of {former}"] if largest < former else [])]


def damaged_file(release: Path, manifest: Manifest, digester: Digester, *, afresh: bool = False) -> str | None:
    """Return the first file of a release that is missing or differs from what was published; None if all are intact.

    Args:
        release: the folder.
        manifest: what was published.
        digester: hashes the files.
        afresh: read every file, whatever the digester remembers.
    """
    for file in manifest.files:
        path = release / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            return file.path
        if digester.file(path, afresh=afresh) != file.sha256:
            return file.path
    return None


def lacking_file(release: Path) -> str | None:
    """Return the first file of a release that is missing or has another size, by its manifest alone.

    A look that costs next to nothing; `damaged_file` reads them all.
    """
    try:
        files = json.loads((release / MANIFEST_FILE).read_bytes())["files"]
        sizes = {str(file["path"]): file["bytes"] for file in files}
    except (OSError, ValueError, KeyError, TypeError):
        return MANIFEST_FILE
    return next((path for path, size in sizes.items() if _size(release / path) != size), None)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def stands_for(published: Manifest, draft: Manifest) -> bool:
    """Whether publishing a draft would add nothing: same files, source and tolerances, and validated as well."""
    if (published.release_digest, published.source.digest) != (draft.release_digest, draft.source.digest):
        return False
    if published.validation.tolerances != draft.validation.tolerances:
        return False
    return draft.served is None or _server(published) == _server(draft)


def _server(manifest: Manifest) -> tuple[str, str, str, str] | None:
    """The served check's context: the backend, its runtime, the instances' device, and the server version."""
    served = manifest.served
    return None if served is None else (served.backend, served.backend_runtime, served.device, served.server_version)
