"""Python interface: compile, open, judge and publish releases with the same steps as the command line.

import plansmith

release = plansmith.compile("timm:resnet18", precision="fp16")
print(release.report.verdict, release.folder)
plansmith.load("artifacts/repository")["resnet18"].publish("s3://models/prod")
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    import torch

    from plansmith.config.spec import ModelSpec
    from plansmith.records.destination import Publication
    from plansmith.records.release import Manifest
    from plansmith.records.validation import ValidationReport
    from plansmith.steps.runner import Listener
    from plansmith.triton.client import Client
    from plansmith.triton.repository.repository import ModelRepository

_SPEC_SUFFIXES = {".yaml", ".yml"}
_ARGUMENTS = "argument"
"""How messages call what was passed to `compile`."""


@dataclass(frozen=True, repr=False)
class Release:
    """A validated, versioned release of a model in a repository.

    Attributes:
        folder: its files, the manifest among them.
        manifest: everything about it, as in `manifest.json`.
    """

    folder: Path
    manifest: Manifest

    @property
    def repository(self) -> Path:
        """The folder that Triton reads."""
        from plansmith.triton.repository.ensembles import STORE_SUFFIX

        store = self.folder.parents[2]
        return store.with_name(store.name.removesuffix(STORE_SUFFIX))

    @property
    def name(self) -> str:
        """The model's name in Triton."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version's number."""
        return self.manifest.version

    @property
    def report(self) -> ValidationReport:
        """The verdict of the accuracy gate, and every error that it measured."""
        return self.manifest.validation

    def validate(self) -> ValidationReport:
        """Check the files by digest, and repeat the accuracy gate on them.

        Raises:
            RepositoryError: a file is missing or damaged.
            GateError: the gate is not passed.
            UsageError: the release holds TensorRT plans, which are judged where they are built.
        """
        from plansmith.steps.release.revalidate import revalidate
        from plansmith.validation.verdict import require_passed

        report = revalidate(self.folder)
        require_passed(report)
        return report

    def publish(self, to: str, *, aliases: str | Sequence[str] = "current", view: bool = False) -> Publication:
        """Publish the release to a store; what is there already is not sent again.

        Args:
            to: a folder, or s3://bucket/prefix.
            aliases: the name, or names, that stand for the version from then on; () leaves all of them where they are.
            view: keep a model repository in the store, for a Triton that reads it there.

        Raises:
            RepositoryError: the release was withdrawn, or the store refuses it.
            EnvironmentFault: the store cannot be reached.
        """
        from plansmith.records.destination import Destination
        from plansmith.stores.publication import Delivery, Terms, outgoing_release

        repository = _opened(self.repository)
        names = (aliases,) if isinstance(aliases, str) else tuple(aliases)
        destination = Destination(to=to, aliases=names, view=view)
        delivery = Delivery(destination, relative_to=Path.cwd(), apart=(repository.root, repository.store))
        return delivery.publish(outgoing_release(repository, f"{self.name}@{self.version}"), Terms(move_anyway=True))

    def client(self, url: str, **options: Any) -> Client:
        """Return a client for this version on a running Triton.

        Args:
            url: where Triton answers, such as 127.0.0.1:8000 or grpc://127.0.0.1:8001.
            options: further arguments of `Client`; version="" asks the version that Triton chooses.
        """
        from plansmith.triton.client import Client

        package = self.manifest.package
        known = {
            "version": str(self.version),
            "interface": package.interface,
            "max_batch_size": package.max_batch_size,
            "decoupled": package.decoupled,
        }
        return Client(url, model=self.name, **{**known, **options})

    def __str__(self) -> str:
        """Name, version, engine, precision and verdict in one line."""
        engine = self.manifest.engine
        return f"{self.name}@{self.version}: {engine.kind}, {engine.precision}, gate {self.report.verdict}"

    def __repr__(self) -> str:
        """As `str`, with the class's name."""
        return f"<Release {self}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the largest error of each output, as notebooks show it."""
        rows = "".join(
            f"<tr><td>{html.escape(output)}</td><td>{worst['max_relative']:.1e}</td>"
            f"<td>{self.report.tolerances[output].max_relative:.1e}</td><td>{worst['min_cosine']:.9f}</td></tr>"
            for output, worst in self.report.worst().items()
        )
        return (
            f"<b>{html.escape(str(self))}</b><table><tr><th>output</th><th>largest error</th><th>allowed</th>"
            f"<th>smallest cosine</th></tr>{rows}</table><small>compared with {html.escape(self.report.reference)}, on"
            f" {html.escape(self.report.data)}; {html.escape(str(self.folder))}</small>"
        )


class Repository:
    """Releases of a repository, by "name" (the newest that serves) or "name@version".

    Args:
        folder: that Triton reads.

    Raises:
        RepositoryError: there is no repository.
    """

    def __init__(self, folder: str | Path) -> None:
        self._repository = _opened(Path(folder))
        if not self._repository.is_there():
            raise RepositoryError(
                f"there is no repository {folder}", remedy="name the folder that models were compiled into"
            )

    def __repr__(self) -> str:
        """The folder, and the names of the models."""
        return f"<Repository {self._repository.root}: {', '.join(self) or 'no models'}>"

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the models."""
        return iter(self._repository.models())

    def __getitem__(self, release: str) -> Release:
        """Return a release.

        Raises:
            RepositoryError: there is none.
        """
        return _release(self._repository, *self._repository.find(release))

    def versions(self, model: str) -> list[Release]:
        """Return all releases of a model, oldest first.

        Raises:
            RepositoryError: there is none.
        """
        model, _ = self._repository.find(model)
        return [_release(self._repository, model, number) for number in self._repository.versions(model)]


def load(repository: str | Path) -> Repository:
    """Open a repository: `load("artifacts/repository")["minilm@3"]`.

    Raises:
        RepositoryError: there is no repository.
    """
    return Repository(repository)


def compile(  # noqa: A001 - what it is called everywhere in plansmith
    source: str | Path | torch.nn.Module,
    *,
    example_inputs: torch.Tensor | Sequence[torch.Tensor] = (),
    dynamic_shapes: Any = None,
    progress: bool | Callable[[str], None] = False,
    **spec: Any,
) -> Release:
    """Compile a model into a validated release, as `plansmith compile` does; finished steps are cached.

    Args:
        source: as on the command line (`hf:…`, `timm:…`, `onnx:…`, …), the path of a spec with one model, or a PyTorch
            module.
        example_inputs: of a module: positional arguments, of a batch of two or more.
        dynamic_shapes: of a module: as `torch.export.export` takes them; the first dim of each input when None.
        progress: called with what is done, such as "export: 12.0 s"; True prints it.
        spec: what a spec can hold, by the same names: name, precision, engine, target, shapes, artifacts, …; `data` may
            be the path of a file. A module without `name` has that of its class.

    Raises:
        UsageError: the spec is wrong.
        GateError: the model is not accurate enough; nothing was published.
        PlansmithError: another step failed.
    """
    from plansmith.steps.compilation import Compilation

    folder = Path.cwd()
    if isinstance(spec.get("data"), str | Path):
        spec["data"] = {"path": str(Path(spec["data"]).absolute())}
    if isinstance(source, str | Path):
        if len(example_inputs):
            raise UsageError(
                "example_inputs are for a PyTorch module", remedy="leave them out, or give the module itself"
            )
        resolved, folder = _spec_of(source, spec, folder)
    else:
        from plansmith.config.spec import make_spec
        from plansmith.sources.pytorch import save_program

        name = spec.setdefault("name", type(source).__name__.lower())
        file = Path(spec.get("artifacts", "artifacts")) / "programs" / f"{name}.pt2"
        resolved = make_spec({"source": f"torch:{file}", **spec}, place=_ARGUMENTS)
        save_program(source, example_inputs, dynamic_shapes, file)
    with Compilation(resolved, relative_to=folder, listener=_listener(progress)) as compilation:
        published, manifest = compilation.run()
    return Release(Path(published.release), manifest)


def _spec_of(source: str | Path, values: dict[str, Any], folder: Path) -> tuple[ModelSpec, Path]:
    """Return the spec of a reference or of a file, and the folder that its paths start from."""
    from plansmith.config.loader import read_specs
    from plansmith.config.spec import make_spec

    path = Path(source)
    if path.suffix not in _SPEC_SUFFIXES:
        return make_spec({"source": str(source), **values}, place=_ARGUMENTS), folder
    file = read_specs(path, values)
    if len(file.models) != 1:
        raise UsageError(
            f"{path} holds {len(file.models)} models",
            remedy="compile each by a file of its own, or on the command line",
        )
    return file.models[0].spec, path.parent


def _listener(progress: bool | Callable[[str], None]) -> Listener:
    from plansmith.formatting import format_seconds
    from plansmith.records.release import StepRecord
    from plansmith.steps.runner import Listener

    tell = progress if callable(progress) else print if progress else lambda _: None

    class Lines(Listener):
        def finished(self, record: StepRecord) -> None:
            tell(f"{record.name}: {'cached' if record.cached else format_seconds(record.seconds)}")

        def notice(self, text: str) -> None:
            tell(text)

    return Lines()


def _opened(folder: Path) -> ModelRepository:
    from plansmith.triton.repository.repository import ModelRepository

    return ModelRepository(folder)


def _release(repository: ModelRepository, name: str, version: int) -> Release:
    return Release(repository.release(name, version), repository.manifest(name, version))
