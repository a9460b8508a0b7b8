"""The model to tune: its spec, and the release that is served now where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.loader import name_of, read_specs
from plansmith.config.spec import ModelSpec
from plansmith.errors import RepositoryError, UsageError
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest
from plansmith.system.digest import digest_of
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.repository import ModelRepository
from plansmith.tuning.configuration import Build, Configuration, read_configuration

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_SPEC_FILE = "spec.yaml"
_ARTIFACTS = "artifacts"
_TUNING_FOLDER = "tuning"


@dataclass(frozen=True)
class TunedModel:
    """A model to tune.

    Attributes:
        name: in Triton.
        spec: what it is compiled from.
        base: folder that paths in the spec are relative to.
        release: the published release that is served now; None where a spec was given.
        url: of a running Triton that serves the trials; empty for one of this machine, started for each.
    """

    name: str
    spec: ModelSpec
    base: Path
    release: Path | None = None
    url: str = ""

    @property
    def folder(self) -> Path:
        """Takes all that searches of the model make, and their history."""
        return (Path(self.spec.artifacts) / _TUNING_FOLDER / self.name).absolute()


def find_model(name: str, repository: Path, *, picked: str = "", target: str = "") -> TunedModel:
    """The model of a command line: a SPEC.yaml, or MODEL[@VERSION] of a repository.

    Args:
        name: as it was typed.
        repository: of the releases.
        picked: which model of a spec with several.
        target: which target of a spec with several.

    Raises:
        UsageError: the spec is wrong or has several models or targets of which none is picked; or one is picked of a
            release.
        RepositoryError: there is no such release, or it does not say what it was made from.
    """
    models = find_models(name, repository, picked=(picked,) if picked else (), target=target)
    if len({model.name for model in models}) > 1:
        raise UsageError(
            f"{name} has {len(models)} models, and one is tuned at a time", remedy=f"--model {models[0].name}"
        )
    return models[0]


def find_models(name: str, repository: Path, *, picked: Sequence[str] = (), target: str = "") -> list[TunedModel]:
    """The models of a command line: those of a SPEC.yaml, or MODEL[@VERSION] of a repository.

    Args:
        name: as it was typed.
        repository: of the releases.
        picked: which models of a spec with several; all when empty.
        target: which target of a spec with several.

    Raises:
        UsageError: the spec is wrong, or has a model for several targets of which none is picked; or one is picked of a
            release.
        RepositoryError: there is no such release, or it does not say what it was made from.
    """
    if name.endswith((".yaml", ".yml")):
        base = Path(name).absolute().parent
        specs = _matching_specs(name, picked, target)
        return [TunedModel(spec.name or name_of(spec.model_dump(), base), spec, base) for spec in specs]
    if picked or target:
        raise UsageError(
            f"{name} is a release, which has one model and one target",
            remedy="leave out --model and --target, or name the SPEC.yaml",
        )
    opened = ModelRepository(repository)
    model, version = opened.find(name)
    release = opened.release(model, version)
    if not (release / _SPEC_FILE).is_file():
        raise RepositoryError(
            f"{release} has no {_SPEC_FILE}, so that nothing else can be compiled of the model",
            remedy="name the SPEC.yaml that it was compiled from",
        )
    folders = {"repository": str(opened.root)}
    (named,) = read_specs(release / _SPEC_FILE, {"name": model}).models
    if Path(named.spec.repository).resolve() != opened.root.resolve():  # it was compiled elsewhere
        folders["artifacts"] = str(Path(_ARTIFACTS).absolute())
    return [TunedModel(model, named.spec.model_copy(update=folders), release, release)]


def _matching_specs(name: str, picked: Sequence[str], target: str) -> list[ModelSpec]:
    models = read_specs(Path(name), {}, tuple(picked)).models
    matching = [one for one in models if target in {"", one.target, one.spec.target}]
    if not matching:
        raise UsageError(
            f"{name} has nothing for the target {target}",
            remedy=f"--target {models[0].target or models[0].spec.target}",
        )
    targets = list(dict.fromkeys(one.target or one.spec.target for one in matching))
    if len(targets) > 1:
        raise UsageError(
            f"{name} is for {len(targets)} targets, and one is served at a time", remedy=f"--target {targets[0]}"
        )
    return [one.spec for one in matching]


def model_config(release: Path, manifest: Manifest) -> pb.ModelConfig:
    """The config.pbtxt of the model itself, which may be a member of an ensemble."""
    member = next((one for one in manifest.package.members if one.part == MODEL_PART), None)
    folder = release / member.folder if member is not None else release
    config: pb.ModelConfig = parse_config((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    return config


def build_of(manifest: Manifest) -> Build:
    """Engine and precision of a release."""
    return Build(engine=manifest.engine.kind, precision=manifest.engine.precision)


def configuration_of(release: Path, manifest: Manifest) -> Configuration:
    """How a release is served.

    Raises:
        UsageError: as `read_configuration`.
    """
    return read_configuration(model_config(release, manifest), build_of(manifest)).normalized


def digest_of_build(release: Path, manifest: Manifest) -> str:
    """Of all that is served of a release except what a search changes."""
    config = model_config(release, manifest)
    Configuration(build=build_of(manifest), max_batch_size=config.max_batch_size).apply_to(config)
    config.name = ""
    files = [(file.path, file.sha256) for file in manifest.files if MODEL_FOLDER in Path(file.path).parts[:-1]]
    return digest_of([sorted(files), text_of(config)])
