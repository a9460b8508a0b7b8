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


def test_what_is_stale_is_built_and_a_failure_of_any_kind_stops_none_of_the_others(place: Place) -> None:
    place.publish(place.spec("done"))
    for name in ("bug", "full", "refused", "well"):
        place.spec(name)
    place.spec("wrong", source="onnx:gone.onnx")
    errors: dict[str, BaseException] = {
        "bug": ZeroDivisionError("division by zero"),
        "full": OSError(28, "No space left on device", "/disk"),
        "refused": ExportError("no graph", remedy="try another", step="export"),
    }
    asked: list[tuple[str, Path]] = []
    begun: list[str] = []
    ended: list[ModelOutcome] = []
    summary = build_fleet(
        place.plan(),
        compiler(place, asked, **errors),
        {},
        begins=lambda one: begun.append(one.model),
        ended=ended.append,
    )
    assert [(one.model, one.ended, one.version) for one in summary.outcomes] == [
        ("bug", "failed", None),
        ("done", "fresh", 1),
        ("full", "failed", None),
        ("refused", "failed", None),
        ("well", "published", 1),
        ("wrong", "failed", None),
    ]
    assert ended == list(summary.outcomes)
    assert [one.model for one in summary.failed] == ["bug", "full", "refused", "wrong"]
    assert begun == [name for name, _ in asked] == ["bug", "full", "refused", "well"]
    failures = {one.model: one.failure for one in summary.failed if one.failure}
    told = {name: (one.exit_code, one.step, one.error) for name, one in failures.items()}
    assert told == {
        "bug": (1, "", "ZeroDivisionError"),
        "full": (9, "", "OSError"),
        "refused": (4, "export", "ExportError"),
        "wrong": (3, "fetch", "SourceError"),
    }
    assert failures["bug"].message.startswith("ZeroDivisionError: division by zero (")
    assert failures["full"].message == "/disk: No space left on device"
    assert failures["refused"].message == "no graph; next: try another"
    assert FleetSummary.model_validate_json(summary.model_dump_json()) == summary
    again = build_fleet(place.plan(), compiler(place, asked), {})
    assert [one.ended for one in again.outcomes if one.model in {"done", "well"}] == ["fresh", "fresh"]


def test_a_rebuild_that_changes_nothing_is_not_asked_for_again(place: Place) -> None:
    file = place.spec("a")
    place.publish(file, target="of another description")
    (outcome,) = build_fleet(place.plan(), compiler(place, []), {}).outcomes
    assert (outcome.ended, outcome.version) == ("unchanged", 1)
    assert [reason.cause for reason in outcome.reasons] == ["target"]
    assert place.why() == ""


def test_a_spec_that_went_away_or_changed_its_name_meanwhile_is_one_failure(place: Place) -> None:
    files = {name: place.spec(name) for name in ("gone", "renamed", "spoiled", "stays")}
    planned = place.plan()
    files["gone"].unlink()
    files["renamed"].write_text(files["renamed"].read_text().replace("name: renamed", "name: another"))
    files["spoiled"].write_text("{")
    asked: list[tuple[str, Path]] = []
    summary = build_fleet(planned, compiler(place, asked), {})
    assert [one.ended for one in summary.outcomes] == ["failed", "failed", "failed", "published"]
    messages = [one.failure.message for one in summary.failed if one.failure]
    assert messages[0].startswith(f"cannot read {files['gone']}: No such file")
    says = "has no model renamed for local-cpu any more; next: plan again: it has another for local-cpu"
    assert messages[1] == f"{files['renamed']} {says}"
    assert "is not YAML" in messages[2]
    assert asked == [("stays", place.specs)]


def test_a_spec_is_read_again_with_the_values_of_the_command_line_and_for_its_own_target(place: Place) -> None:
    place.spec("a", target=["local-cpu", "triton-26.03"])
    overrides = {"precision": "int8"}
    planned = place.plan(overrides=overrides, force=True)
    for one in planned:
        spec, folder = spec_of(one, overrides)
        assert (spec.name, spec.target, spec.precision, spec.force) == ("a", one.target, "int8", True)
        assert folder == place.specs
    assert not spec_of(place.plan()[0], {})[0].force
    other = planned[0].model_copy(update={"target": "elsewhere"})
    with pytest.raises(UsageError, match="has no model a for elsewhere any more"):
        spec_of(other, {})


def test_an_interrupt_ends_the_fleet_and_is_told_of_the_model_that_it_met(place: Place) -> None:
    place.spec("a")
    place.spec("b")
    told: list[ModelOutcome] = []
    with pytest.raises(KeyboardInterrupt):
        build_fleet(place.plan(), compiler(place, [], a=KeyboardInterrupt()), {}, ended=told.append)
    assert [(one.model, one.ended) for one in told] == [("a", "interrupted")]
    assert told[0].failure is not None
    assert told[0].failure.exit_code == 130


def test_plans_and_outcomes_survive_json(place: Place) -> None:
    place.publish(place.spec("a"))
    place.spec("b", source="onnx:gone.onnx")
    for one in [*place.plan(), *place.plan(force=True)]:
        assert PlannedModel.model_validate_json(one.model_dump_json()) == one


def test_of_one_name_in_two_repositories_each_is_built_from_its_own_entry(place: Place) -> None:
    entries = [
        {"source": f"onnx:{place.graph}", "name": "a", "repository": name, "precision": precision}
        for name, precision in (("first", "fp32"), ("second", "fp16"))
    ]
    file = place.write("both.yaml", {"models": entries})
    planned = place.plan(file)
    assert [one.state for one in planned] == ["stale", "stale"]
    found = [spec_of(one, {})[0] for one in planned]
    assert [(Path(one.repository or "").name, one.precision) for one in found] == [
        ("first", "fp32"),
        ("second", "fp16"),
    ]
    summary = build_fleet(planned, compiler(place, [], a=ZeroDivisionError()), {})
    assert [one.repository for one in summary.outcomes] == [one.repository for one in planned]
    file.write_text(file.read_text().replace("second", "third"))
    with pytest.raises(UsageError, match="has no model a for local-cpu any more") as refused:
        spec_of(planned[1], {})
    assert refused.value.remedy.endswith(f"a for local-cpu in {place.specs / 'third'}")
