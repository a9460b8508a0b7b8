"""What comes of a plan: each model is read again and built by itself, and no failure stops the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.config.spec import ModelSpec
from plansmith.errors import ExportError, UsageError
from plansmith.fleet.build import build_fleet, spec_of
from plansmith.fleet.records import FleetSummary, ModelOutcome, PlannedModel
from plansmith.records.release import PublishedVersion

from ..support.fleet import Place

Compile = Callable[[ModelSpec, Path], PublishedVersion]


def compiler(place: Place, asked: list[tuple[str, Path]], **raises: BaseException) -> Compile:
    """Publishes what it is given, and notes what that was."""

    def compile_one(spec: ModelSpec, folder: Path) -> PublishedVersion:
        asked.append((spec.name, folder))
        if spec.name in raises:
            raise raises[spec.name]
        return place.publish(folder / f"{spec.name}.yaml")

    return compile_one


def test_stale_models_built_despite_failure(place: Place) -> None:
    """What is stale is built and a failure of any kind stops none of the others."""
    place.publish(place.spec("done"))
    for name in ("bug", "full", "refused", "well"):
        place.spec(name)
    place.spec("wrong", source="onnx:gone.onnx")
    errors: dict[str, BaseException] = {
        "bug": ZeroDivisionError("division by zero"),
        "full": OSError(28, "No space left on device", "/disk"),
        "refused": ExportError("no graph", remedy="try another", step="export"),
    }
    calls: list[tuple[str, Path]] = []
    begun: list[str] = []
    ended: list[ModelOutcome] = []
    summary = build_fleet(
        place.plan(),
        compiler(place, calls, **errors),
        {},
        begins=lambda entry: begun.append(entry.model),
        ended=ended.append,
    )
    assert [(entry.model, entry.ended, entry.version) for entry in summary.outcomes] == [
        ("bug", "failed", None),
        ("done", "fresh", 1),
        ("full", "failed", None),
        ("refused", "failed", None),
        ("well", "published", 1),
        ("wrong", "failed", None),
    ]
    assert ended == list(summary.outcomes)
    assert [entry.model for entry in summary.failed] == ["bug", "full", "refused", "wrong"]
    assert begun == [name for name, _ in calls] == ["bug", "full", "refused", "well"]
    failures = {entry.model: entry.failure for entry in summary.failed if entry.failure}
    details = {name: (entry.exit_code, entry.step, entry.error) for name, entry in failures.items()}
    assert details == {
        "bug": (1, "", "ZeroDivisionError"),
        "full": (9, "", "OSError"),
        "refused": (4, "export", "ExportError"),
        "wrong": (3, "fetch", "SourceError"),
    }
    assert failures["bug"].message.startswith("ZeroDivisionError: division by zero (")
    assert failures["full"].message == "/disk: No space left on device"
    assert failures["refused"].message == "no graph; next: try another"
    assert FleetSummary.model_validate_json(summary.model_dump_json()) == summary
    again = build_fleet(place.plan(), compiler(place, calls), {})
    assert [entry.ended for entry in again.outcomes if entry.model in {"done", "well"}] == ["fresh", "fresh"]


def test_unchanged_rebuild_not_repeated(place: Place) -> None:
    """A rebuild that changes nothing is not asked for again."""
    file = place.spec("a")
    place.publish(file, target="of another description")
    (outcome,) = build_fleet(place.plan(), compiler(place, []), {}).outcomes
    assert (outcome.ended, outcome.version) == ("unchanged", 1)
    assert [reason.cause for reason in outcome.reasons] == ["target"]
    assert place.why() == ""


def test_vanished_spec_is_one_failure(place: Place) -> None:
    """A spec that went away or changed its name meanwhile is one failure."""
    files = {name: place.spec(name) for name in ("gone", "renamed", "spoiled", "stays")}
    planned = place.plan()
    files["gone"].unlink()
    files["renamed"].write_text(files["renamed"].read_text().replace("name: renamed", "name: another"))
    files["spoiled"].write_text("{")
    calls: list[tuple[str, Path]] = []
    summary = build_fleet(planned, compiler(place, calls), {})
    assert [outcome.ended for outcome in summary.outcomes] == ["failed", "failed", "failed", "published"]
    messages = [outcome.failure.message for outcome in summary.failed if outcome.failure]
    assert messages[0].startswith(f"cannot read {files['gone']}: No such file")
    says = "has no model renamed for local-cpu any more; next: plan again: it has another for local-cpu"
    assert messages[1] == f"{files['renamed']} {says}"
    assert "is not YAML" in messages[2]
    assert calls == [("stays", place.specs)]


def test_spec_reread_with_command_line(place: Place) -> None:
    """A spec is read again with the values of the command line and for its own target."""
    place.spec("a", target=["local-cpu", "triton-26.03"])
    overrides = {"precision": "int8"}
    planned = place.plan(overrides=overrides, force=True)
    for member in planned:
        spec, folder = spec_of(member, overrides)
        assert (spec.name, spec.target, spec.precision, spec.force) == ("a", member.target, "int8", True)
        assert folder == place.specs
    assert not spec_of(place.plan()[0], {})[0].force
    variant = planned[0].model_copy(update={"target": "elsewhere"})
    with pytest.raises(UsageError, match="has no model a for elsewhere any more"):
        spec_of(variant, {})


def test_interrupt_ends_fleet(place: Place) -> None:
    """An interrupt ends the fleet and is told of the model that it met."""
    place.spec("a")
    place.spec("b")
    outcomes: list[ModelOutcome] = []
    with pytest.raises(KeyboardInterrupt):
        build_fleet(place.plan(), compiler(place, [], a=KeyboardInterrupt()), {}, ended=outcomes.append)
    assert [(outcome.model, outcome.ended) for outcome in outcomes] == [("a", "interrupted")]
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.exit_code == 130


def test_plans_and_outcomes_survive_json(place: Place) -> None:
    place.publish(place.spec("a"))
    place.spec("b", source="onnx:gone.onnx")
    for item in [*place.plan(), *place.plan(force=True)]:
        assert PlannedModel.model_validate_json(item.model_dump_json()) == item


def test_same_name_built_from_own_entry(place: Place) -> None:
    """Of one name in two repositories, each is built from its own entry."""
    entries = [
        {"source": f"onnx:{place.graph}", "name": "a", "repository": name, "precision": precision}
        for name, precision in (("first", "fp32"), ("second", "fp16"))
    ]
    file = place.write("both.yaml", {"models": entries})
    planned = place.plan(file)
    assert [entry.state for entry in planned] == ["stale", "stale"]
    model_specs = [spec_of(entry, {})[0] for entry in planned]
    assert [(Path(entry.repository or "").name, entry.precision) for entry in model_specs] == [
        ("first", "fp32"),
        ("second", "fp16"),
    ]
    summary = build_fleet(planned, compiler(place, [], a=ZeroDivisionError()), {})
    assert [entry.repository for entry in summary.outcomes] == [entry.repository for entry in planned]
    file.write_text(file.read_text().replace("second", "third"))
    with pytest.raises(UsageError, match="has no model a for local-cpu any more") as refused:
        spec_of(planned[1], {})
    assert refused.value.remedy.endswith(f"a for local-cpu in {place.specs / 'third'}")
