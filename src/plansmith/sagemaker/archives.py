"""Archives (model.tar.gz) of releases, as SageMaker's Triton containers take them: the same bytes on any machine.

The root of an archive holds a folder for each model and nothing else, `<model>/config.pbtxt` and
`<model>/<version>/…`, which `docker/sagemaker/serve` and the front end look at (github.com/triton-inference-server).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from plansmith.compilers.trt.versions import numbers_of
from plansmith.config.target.targets import Target, load_target
from plansmith.errors import EngineError, RepositoryError, UsageError
from plansmith.records.engine import HardwareCompatibility
from plansmith.records.model import Device, Record
from plansmith.sagemaker.archive_file import write_archive_file
from plansmith.sagemaker.memory import loaded_bytes
from plansmith.sagemaker.selection import PackageRequest, select_releases, serving_target
from plansmith.sagemaker.start_script import ADDITIONAL_ARGUMENTS, DEFAULT_MODEL, PING_MODE
from plansmith.sagemaker.tarball import archive_size, archive_stream
from plansmith.system.digest import digest_of
from plansmith.triton.checker.checker import check_repository
from plansmith.triton.checker.findings import Finding
from plansmith.triton.checker.rules import sagemaker as sagemaker_rules
from plansmith.triton.repository.renamed import Content, RenamedRelease, renamed_contents
from plansmith.triton.repository.repository import ModelRepository

SUFFIX = ".tar.gz"

_OTHER_ARCHIVES = {".gz", ".tar", ".tgz", ".zip"}

_MOST_SHOWN = 8


class Archive(Record):
    """An archive for SageMaker.

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
        """The bytes that are loaded at most on instances with such a GPU; None for those without one."""
        return self.loaded_bytes.get(capability or "", self.loaded_bytes.get("", self.unpacked_bytes))


@dataclass(frozen=True)
class ArchivePlan:
    """An archive that can be made.

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
    """The archives of releases, checked as a container will see them; nothing is written.

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
    """Make an archive, which appears whole under its name; nothing where it is there already.

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
        device="gpu" if any(load_target(one.manifest.target).device == "gpu" for one in releases) else "cpu",
        multi_model=request.multi_model,
        environment=environment,
        image_packages={model: needed for one in releases for model, needed in one.image_packages().items()},
        loaded_bytes=loaded_bytes(entries, requirements.get("compute_capabilities", ())),
        **requirements,
    )
    return ArchivePlan(archive, entries, folders, tuple(warnings))


def _server_arguments(releases: Sequence[RenamedRelease]) -> list[str]:
    """What the server has to be started with besides what the start script does by itself."""
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
    """The warnings of `plansmith check` for an archive as a container will see it.

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
        found = check_repository(root, target=target, sagemaker=True, arguments=arguments)
    found = [finding for finding in found if finding.rule not in settled]
    refused = [one for one in found if one.severity == "error" or one.rule == sagemaker_rules.ENSEMBLE.id]
    if refused:
        lines = [f"  {one.place}: {one.message} [{one.rule}]" for one in refused[:_MOST_SHOWN]]
        lines += [f"  … and {len(refused) - _MOST_SHOWN} more"] if len(refused) > _MOST_SHOWN else []
        raise RepositoryError(
            "\n".join([f"{target.name} would not serve such an archive:", *lines]), remedy=refused[0].remedy
        )
    return [finding for finding in found if finding.severity == "warning"]


def _plan_requirements(releases: Sequence[RenamedRelease]) -> dict[str, Any]:
    """The fields of an archive that say what its plans need, all of them on one instance.

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
