"""Release archives (model.tar.gz) for SageMaker's Triton containers: the same bytes on any machine.

The root of an archive holds a folder for each model and nothing else, `<model>/config.pbtxt` and
`<model>/<version>/…`, which `docker/sagemaker/serve` and the front end look at (github.com/triton-inference-server).
"""

from __future__ import annotations

import hashlib
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import Field

from plansmith.compilers.trt.versions import numbers_of
from plansmith.config.targets import Target, load_target
from plansmith.errors import EngineError, RepositoryError, UsageError
from plansmith.records.engine import HardwareCompatibility
from plansmith.records.model import Device, Record
from plansmith.records.release import CONFIG_FILE
from plansmith.sagemaker.selection import PackageRequest, select_releases, serving_target
from plansmith.sagemaker.start_script import ADDITIONAL_ARGUMENTS, DEFAULT_MODEL, PING_MODE
from plansmith.system.digest import digest_of
from plansmith.system.files import fsync_path, locked, make_folder, move_into_place, storage_errors
from plansmith.triton.checker.checker import check_repository
from plansmith.triton.checker.findings import Finding
from plansmith.triton.checker.rules import sagemaker as sagemaker_rules
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.renamed import Content, RenamedRelease, renamed_contents
from plansmith.triton.repository.repository import ModelRepository

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_MODIFIED = 315_532_800
"""1980-01-01: there are programs that doubt 1970."""

_CHUNK_BYTES = 2**20
_BLOCK_BYTES = 0xFFFF
_BLOCK_HEADER = struct.Struct("<BHH")
_GZIP_HEADER = b"\x1f\x8b\x08\0" + b"\0\0\0\0" + b"\0\xff"  # deflate, no name, no time, no system
_GZIP_TRAILER = struct.Struct("<II")
_ENVIRONMENT = "EXECUTION_ENV_PATH"
SUFFIX = ".tar.gz"
_OTHER_ARCHIVES = {".gz", ".tar", ".tgz", ".zip"}
_MOST_SHOWN = 8


def write_archive_file(path: Path, size: int, stream: Callable[[], Iterator[bytes]]) -> tuple[str, bool]:
    """Write an archive unless it exists; waits for another process that writes the same one.

    Args:
        path: its final name.
        size: in bytes.
        stream: makes the content, each time it is called.

    Returns:
        SHA-256 of it, and whether it was there already.

    Raises:
        RepositoryError: another content has the name; the disk is full; or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")  # the lock file too: what a killed process left is written over
    with storage_errors(path.parent, alternative="--output"):
        make_folder(path.parent)
        if not path.exists():
            with locked(partial):
                try:
                    if not path.exists():
                        return _write(partial, path, stream()), False
                finally:
                    partial.unlink(missing_ok=True)
        return _compare(path, size, stream()), True


def _write(partial: Path, path: Path, stream: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for chunk in stream:
            digest.update(chunk)
            out.write(chunk)
    fsync_path(partial)
    move_into_place(partial, path)
    return digest.hexdigest()


def _compare(path: Path, size: int, stream: Iterator[bytes]) -> str:
    """Return the digest of an existing archive, after checking that it equals the one to be written."""
    digest = hashlib.sha256()
    if path.is_file() and path.stat().st_size == size:
        with path.open("rb") as existing:
            for chunk in stream:
                if existing.read(len(chunk)) != chunk:
                    break
                digest.update(chunk)
            else:
                return digest.hexdigest()
    raise RepositoryError(
        f"{path} is there already, with other content, and is not overwritten: endpoints keep what they loaded",
        remedy="choose another --output, or move it away",
    )


_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


def archive_size(entries: Mapping[str, Content], folders: frozenset[str] = frozenset()) -> int:
    """Return the size of an archive in bytes; arguments as for `archive_stream`."""
    tar = sum(len(header) + (_padded(content.size) if content else 0) for header, content in _headers(entries, folders))
    tar = _filled(tar + 2 * tarfile.BLOCKSIZE)
    blocks = -(-tar // _BLOCK_BYTES)
    return len(_GZIP_HEADER) + tar + blocks * _BLOCK_HEADER.size + _GZIP_TRAILER.size


def archive_stream(
    entries: Mapping[str, Content],
    folders: frozenset[str] = frozenset(),
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[bytes]:
    """Yield the bytes of an archive, chunk by chunk.

    Args:
        entries: the files by their paths in it; the folders that they lie in come by themselves.
        folders: further ones, which may be empty.
        progress: told how many bytes of contents each chunk had.

    Raises:
        RepositoryError: a file is no longer what its digest says, or cannot be read.
    """
    checksum, size, pending = 0, 0, bytearray()
    yield _GZIP_HEADER
    for chunk in _tar(entries, folders, progress):
        checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
        pending += chunk
        whole = (len(pending) - 1) // _BLOCK_BYTES * _BLOCK_BYTES  # something is left for the last block
        if whole > 0:
            yield _stored_blocks(pending[:whole], last=False)
            del pending[:whole]
    yield _stored_blocks(pending, last=True)
    yield _GZIP_TRAILER.pack(checksum, size & 0xFFFFFFFF)


def _stored_blocks(content: bytearray, *, last: bool) -> bytes:
    pieces = []
    for start in range(0, len(content), _BLOCK_BYTES):
        piece = content[start : start + _BLOCK_BYTES]
        is_final = last and start + _BLOCK_BYTES >= len(content)
        pieces += [_BLOCK_HEADER.pack(is_final, len(piece), len(piece) ^ 0xFFFF), bytes(piece)]
    return b"".join(pieces)


def _tar(entries: Mapping[str, Content], folders: frozenset[str], progress: Callable[[int], None]) -> Iterator[bytes]:
    size = 0
    for header, content in _headers(entries, folders):
        yield header
        size += len(header)
        if content is not None:
            for chunk in _chunks(content):
                yield chunk
                progress(len(chunk))
            yield bytes(_padded(content.size) - content.size)
            size += _padded(content.size)
    yield bytes(_filled(size + 2 * tarfile.BLOCKSIZE) - size)


def _headers(entries: Mapping[str, Content], folders: frozenset[str]) -> Iterator[tuple[bytes, Content | None]]:
    """Return the header of each entry with its content, sorted by path; None for a folder."""
    parents = {str(parent) for path in (*entries, *folders) for parent in PurePosixPath(path).parents} - {"."}
    for path in sorted({*entries, *folders, *parents}, key=lambda entry: PurePosixPath(entry).parts):
        content = entries.get(path)
        header = tarfile.TarInfo(path)
        header.mtime = _MODIFIED
        header.mode = _FOLDER_MODE if content is None else _FILE_MODE
        if content is None:
            header.type = tarfile.DIRTYPE
        else:
            header.size = content.size
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"), content


def _chunks(content: Content) -> Iterator[bytes]:
    """Yield a file's content and verify its digest while reading."""
    if isinstance(content.source, bytes):
        yield content.source
        return
    digest, remaining = hashlib.sha256(), content.size
    try:
        with content.source.open("rb") as stream:
            while chunk := stream.read(min(_CHUNK_BYTES, remaining)):
                digest.update(chunk)
                remaining -= len(chunk)
                yield chunk
            is_whole = not remaining and not stream.read(1)
    except OSError as error:
        raise RepositoryError(
            f"cannot read {content.source}: {error.strerror}", remedy="see that it is there and readable"
        ) from error
    if not is_whole or digest.hexdigest() != content.sha256:
        raise RepositoryError(
            f"{content.source} is damaged: it is not what was published",
            remedy="name another version, or compile the model again",
        )


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _filled(size: int) -> int:
    return -(-size // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def loaded_bytes(entries: Mapping[str, Content], capabilities: Iterable[str]) -> dict[str, int]:
    """Return the maximum bytes of loaded files, by compute capability; under "" for instances without a GPU.

    Plans for other GPUs stay on the disk. So do packed Python environments, whose size says nothing of their memory.

    Args:
        entries: the files of the archive by their paths.
        capabilities: compute capabilities, such as "8.6".
    """
    configs = {path.partition("/")[0]: _config(content) for path, content in entries.items() if _is_config(path)}
    environments = {f"{model}/{_environment(config)}" for model, config in configs.items()}
    sizes = {path: content.size for path, content in entries.items() if path not in environments}
    plans: dict[str, int] = {}
    for model, config in configs.items():
        for capability, file in config.cc_model_filenames.items():
            size = sum(size for path, size in sizes.items() if path.split("/", 2)[::2] == [model, file])
            plans[capability] = plans.get(capability, 0) + size
    shared = sum(sizes.values()) - sum(plans.values())
    return {"": sum(sizes.values()), **{name: shared + plans.get(name, 0) for name in capabilities}}


def _is_config(path: str) -> bool:
    return path.partition("/")[2] == CONFIG_FILE


def _config(content: Content) -> pb.ModelConfig:
    source = content.source
    return parse_config(source.read_text(encoding="utf-8") if isinstance(source, Path) else source.decode())


def _environment(config: pb.ModelConfig) -> str:
    """Return the environment file that a configuration refers to; empty if none."""
    return str(config.parameters[_ENVIRONMENT].string_value).rpartition("/")[2] if config.parameters else ""


class Archive(Record):
    """SageMaker archive.

    Attributes:
        file: its path.
        digest: its SHA-256; empty where it was only planned.
        bytes: its size.
        unpacked_bytes: the size of all files in it.
        loaded_bytes: the size of the files that are loaded at most, by the compute capability of the instance's GPU;
            under "" without a GPU.
        models: the folders in its root.
        default_model: the model that the front end serves.
        releases: what it was made of, as MODEL@VERSION.
        target: the image that serves it.
        device: what its instances run on there.
        compute_capabilities: the GPUs that its plans are for; empty without plans.
        hardware_compatibility: whether these load on other GPUs, too.
        tensorrt: the version of its plans.
        version_compatible: whether newer versions load its plans.
        multi_model: whether it is one of many in an endpoint.
        environment: the variables to set at the endpoint.
        image_packages: by model, the packages that the image's Python must have.
        unchanged: whether it was there already.
    """

    file: str
    digest: str
    bytes: int
    unpacked_bytes: int
    loaded_bytes: dict[str, int] = Field(default_factory=dict)
    models: tuple[str, ...]
    default_model: str
    releases: tuple[str, ...]
    target: str
    device: Device
    compute_capabilities: tuple[str, ...] = ()
    hardware_compatibility: HardwareCompatibility = "none"
    tensorrt: str | None = None
    version_compatible: bool = False
    multi_model: bool = False
    environment: dict[str, str] = Field(default_factory=dict)
    image_packages: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    unchanged: bool = False

    def loaded_on(self, capability: str | None) -> int:
        """Return the maximum bytes loaded on instances with such a GPU; None for those without one."""
        return self.loaded_bytes.get(capability or "", self.loaded_bytes.get("", self.unpacked_bytes))


@dataclass(frozen=True)
class ArchivePlan:
    """Planned archive.

    Attributes:
        archive: what it will be, without its digest.
        entries: the files in it.
        folders: further folders.
        warnings: what is doubtful in it.
    """

    archive: Archive
    entries: Mapping[str, Content]
    folders: frozenset[str]
    warnings: tuple[Finding, ...] = ()


def plan_archives(repository: ModelRepository, request: PackageRequest, output: Path) -> list[ArchivePlan]:
    """Plan the archives of releases, checked in the form that a container will see; writes nothing.

    Args:
        repository: has the releases.
        request: which of them, and for what.
        output: the file of the one archive, which ends in .tar.gz; or the folder that takes archives under unique
            names, of the model, its version and a digest of the contents.

    Raises:
        RepositoryError: there is no such release, it was withdrawn or is damaged, or the start script or the front end
            would refuse it.
        EngineError: it was compiled for something else than an image of SageMaker.
        UsageError: models and options do not fit together.
    """
    if request.multi_model and output.name.endswith(SUFFIX):
        raise UsageError(
            f"{output} is one file, and a multi-model endpoint takes one for each model", remedy="name a folder"
        )
    if output.suffix in _OTHER_ARCHIVES and not output.name.endswith(SUFFIX):
        raise UsageError(
            f"{output} is no name of an archive that SageMaker takes",
            remedy=f"let it end in {SUFFIX}; or name a folder",
        )
    return [_plan(releases, request, output) for releases in select_releases(repository, request)]


def write_archive(plan: ArchivePlan, progress: Callable[[int], None] = lambda _: None) -> Archive:
    """Write an archive atomically, unless it exists.

    Args:
        plan: of `plan_archives`.
        progress: told how many more bytes of its files were read.

    Returns:
        The archive, with its digest.

    Raises:
        RepositoryError: another one has its name; a file of a release is damaged; the disk is full or not writable.
    """
    digest, unchanged = write_archive_file(
        Path(plan.archive.file), plan.archive.bytes, lambda: archive_stream(plan.entries, plan.folders, progress)
    )
    return plan.archive.model_copy(update={"digest": digest, "unchanged": unchanged})


def _plan(releases: Sequence[RenamedRelease], request: PackageRequest, output: Path) -> ArchivePlan:
    first = releases[0]
    entries = renamed_contents(releases)
    folders = frozenset[str]().union(*(release.version_folders for release in releases))
    target = serving_target(first, request.target)
    arguments = _server_arguments(releases)
    warnings = _check(entries, folders, target, arguments, multi_model=request.multi_model)
    digest = digest_of(sorted((path, content.sha256) for path, content in entries.items()))
    name = f"{first.name}-{first.manifest.version}-{digest[:8]}{SUFFIX}"
    environment = {PING_MODE: "live"} if request.multi_model else {DEFAULT_MODEL: first.name}
    if arguments:
        environment[ADDITIONAL_ARGUMENTS] = " ".join(arguments)
    requirements = _plan_requirements(releases)
    archive = Archive(
        file=str(output if output.name.endswith(SUFFIX) else output / name),
        digest="",
        bytes=archive_size(entries, folders),
        unpacked_bytes=sum(content.size for content in entries.values()),
        models=tuple(model for release in releases for model in release.models),
        default_model=first.name,
        releases=tuple(release.release for release in releases),
        target=target.name,
        device="gpu" if any(load_target(entry.manifest.target).device == "gpu" for entry in releases) else "cpu",
        multi_model=request.multi_model,
        environment=environment,
        image_packages={model: needed for entry in releases for model, needed in entry.image_packages().items()},
        loaded_bytes=loaded_bytes(entries, requirements.get("compute_capabilities", ())),
        **requirements,
    )
    return ArchivePlan(archive, entries, folders, tuple(warnings))


def _server_arguments(releases: Sequence[RenamedRelease]) -> list[str]:
    """Return server arguments that are needed in addition to those of the start script."""
    needed = [argument for release in releases for argument in release.manifest.package.server_arguments]
    loads = [f"--load-model={name}" for name in releases[0].script_members()]
    return list(dict.fromkeys([*needed, *loads]))


def _check(
    entries: Mapping[str, Content],
    folders: frozenset[str],
    target: Target,
    arguments: Sequence[str],
    *,
    multi_model: bool,
) -> list[Finding]:
    """Return the warnings of `plansmith check` for an archive as a container will see it.

    Raises:
        RepositoryError: a container would refuse it.
    """
    # The environment names the default model; the other two rules are those of multi-model endpoints.
    settled = {sagemaker_rules.SEVERAL.id}
    settled |= set() if multi_model else {sagemaker_rules.ENSEMBLE.id, sagemaker_rules.MANY.id}
    with tempfile.TemporaryDirectory(prefix="plansmith-sagemaker-") as temporary:
        root = Path(temporary, "model")
        for folder in folders:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for path, content in entries.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content.source, bytes):
                (root / path).write_bytes(content.source)
            else:
                (root / path).symlink_to(content.source.resolve())
        findings = check_repository(root, target=target, sagemaker=True, arguments=arguments)
    findings = [finding for finding in findings if finding.rule not in settled]
    refused = [
        problem for problem in findings if problem.severity == "error" or problem.rule == sagemaker_rules.ENSEMBLE.id
    ]
    if refused:
        lines = [f"  {problem.place}: {problem.message} [{problem.rule}]" for problem in refused[:_MOST_SHOWN]]
        lines += [f"  … and {len(refused) - _MOST_SHOWN} more"] if len(refused) > _MOST_SHOWN else []
        raise RepositoryError(
            "\n".join([f"{target.name} would not serve such an archive:", *lines]), remedy=refused[0].remedy
        )
    return [finding for finding in findings if finding.severity == "warning"]


def _plan_requirements(releases: Sequence[RenamedRelease]) -> dict[str, Any]:
    """Return the archive fields that state what its plans need, all of them on one instance.

    Raises:
        EngineError: no GPU is one that all of them are for.
    """
    engines = [engine for release in releases for engine in release.engines if engine.plans]
    if not engines:
        return {}
    shared = set.intersection(*(set(engine.plans) for engine in engines))
    if not shared:
        raise EngineError(
            f"{', '.join(release.release for release in releases)} have plans for no GPU that they share",
            remedy="compile them for the same compute capabilities",
        )
    builds = [engine.build for engine in engines if engine.build is not None]
    compatibilities = {build.hardware_compatibility for build in builds}
    return {
        "compute_capabilities": tuple(sorted(shared, key=numbers_of)),
        "hardware_compatibility": compatibilities.pop() if len(compatibilities) == 1 else "none",
        "tensorrt": max((plan.tensorrt for engine in engines for plan in engine.plans.values()), key=numbers_of),
        "version_compatible": bool(builds) and all(build.version_compatible for build in builds),
    }
