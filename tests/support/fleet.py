"""A folder of specs whose models were published with all that a compile notes, in milliseconds and without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from plansmith.config.targets import name_of
from plansmith.fleet.members import Member, members_in
from plansmith.fleet.plan import plan_fleet
from plansmith.fleet.records import PlannedModel
from plansmith.records.model import SourceModel
from plansmith.records.release import Fingerprint, PublishedVersion
from plansmith.steps.provenance.fingerprint import Hub, fingerprint_of, source_identity
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

from .faults.packages import draft_of, publish, write_package


class Place:
    """A folder with specs in `specs`, and `artifacts` beside them.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.specs = folder / "specs"
        self.repository = ModelRepository(folder / "artifacts" / "repository")
        self.graph = folder / "graph.onnx"
        self.graph.write_bytes(b"a graph that nobody opens")
        self.specs.mkdir()

    def spec(self, name: str = "one", **values: Any) -> Path:
        """Write `<name>.yaml`, of a model of that name; values take the place of the usual ones."""
        usual = {"source": f"onnx:{self.graph}", "name": name, "artifacts": "../artifacts", "check_served": False}
        return self.write(f"{name}.yaml", usual | values)

    def write(self, name: str, values: Any) -> Path:
        """Write a spec file."""
        path = self.specs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return path

    def basis(self, member: Member, **fields: Any) -> Fingerprint:
        """What the member's model is made from now."""
        digester = Digester(Path(member.spec.artifacts) / "cache" / "digests.sqlite")
        values = member.spec.model_dump(mode="json", include={"data"})
        values["source"] = source_identity(member.spec, member.file.parent)
        noted = Fingerprint(
            version=0, spec=values, source="", revision="", data="", target="", tools={}, destinations=()
        )
        then = noted.model_copy(update=fields)
        return fingerprint_of(
            member.spec, relative_to=member.file.parent, digester=digester, hub=Hub(ask=False), previous=then
        )

    def publish(
        self,
        file: Path,
        *,
        note: bool = True,
        content: str = "made once",
        source: SourceModel | None = None,
        **noted: Any,
    ) -> PublishedVersion:
        """Publish what stands for the first model of a spec, and note what it was made from.

        Args:
            file: the spec.
            note: write the note, as every compile does.
            content: of the release.
            source: of the model; the usual one when left out.
            noted: fields of the note that are others than those that were found.
        """
        member = next(entry for entry in members_in(file, {}) if isinstance(entry, Member))
        package = write_package(self.folder / "packages" / member.name / content, content)
        draft = draft_of(package, model=member.name, target=name_of(member.spec.target))
        if source is not None:
            draft = draft.model_copy(update={"source": source})
        published = publish(member.repository, package, draft)
        if note:
            fingerprint = self.basis(member, **noted).model_copy(update={"version": published.version, **noted})
            ModelRepository(member.repository).store_fingerprint(member.name, fingerprint)
        return published

    def plan(self, *places: Path, **options: Any) -> list[PlannedModel]:
        """The plan of the places, or of all specs."""
        overrides = options.pop("overrides", {})
        return list(plan_fleet(places or [self.specs], overrides, **options))

    def why(self, **options: Any) -> str:
        """Why the only model is built; empty where it is fresh."""
        (member,) = self.plan(**options)
        assert member.failure is None, member
        assert (member.state == "stale") == bool(member.reasons)
        return "; ".join(f"{reason.cause}: {reason.words}" for reason in member.reasons)
