"""Which compiles an event becomes: the rule's spec with the event's source, for each target, in its pool."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.service.service import ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.triggers.builder import Builder, orders_of, spec_problems
from plansmith.flows.triggers.triggered_runs import Order
from plansmith.records.fingerprint import SourceOverride
from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.registries.event import Event

from ...support.triggers.known_runs import KnownRuns, champion, service

SPEC = "specs/ranker.yaml"
RANKER = "name: ranker\nsource: hf:org/ranker\nartifacts: ../made\n"
TOOLS = "tools"
AT = 1795165608.0


def told(change: str, value: str = "", source: str = "mlflow:models:/ranker/3") -> Event:
    """Something that a registry told of a model."""
    model = "org/x" if change == "branch" else "x" if change == "ready" else "ranker"
    return champion(model, source=source).model_copy(update={"change": change, "value": value})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the service, with a spec; whoever builds works there."""
    monkeypatch.chdir(tmp_path)
    _write(RANKER)
    return tmp_path


def test_an_event_becomes_a_compile_of_exactly_its_version_by_the_rules_spec() -> None:
    (order,) = _orders(service({"spec": SPEC}), champion())
    assert order.pool == "first"
    assert (order.wanted.model, order.wanted.target) == ("ranker", "local-cpu")
    # Places are relative: each machine has its own directory of the service.
    assert order.wanted.parameters == {
        "spec": {
            "name": "ranker",
            "source": "mlflow:models:/ranker/3",
            "source_override": {"replaces": "hf:org/ranker", "is_tracked": False, "at": AT},
            "artifacts": "specs/../made",
        },
        "folder": "specs",
        "directory": ".",
    }


def test_an_event_without_a_source_leaves_that_of_the_spec() -> None:
    (order,) = _orders(service({"spec": SPEC}), champion(source=""))
    assert order.wanted.spec.source == "hf:org/ranker"


def test_an_event_that_names_the_specs_own_source_chooses_nothing_else() -> None:
    (order,) = _orders(service({"spec": SPEC}), champion(source="hf:org/ranker"))
    assert (order.wanted.spec.source, order.wanted.spec.source_override) == ("hf:org/ranker", None)


@pytest.mark.parametrize(
    ("own", "told", "is_tracked"),
    [
        ("mlflow:models:/ranker@champion", champion(), True),
        ("mlflow:models:/ranker@other", champion(), False),
        ("mlflow:models:/other@champion", champion(), False),
        ("mlflow:models:/ranker/latest", champion(), False),
        ("mlflow:models:/ranker/latest", told("created"), True),
        ("mlflow:models:/ranker@champion", told("tag", "compile=requested"), False),
        ("hf:org/x", told("branch", "refs/heads/main", "hf:org/x@abc"), True),
        ("hf:org/x@main", told("branch", "refs/heads/main", "hf:org/x@abc"), True),
        ("hf:org/x", told("branch", "refs/heads/prod", "hf:org/x@abc"), False),
        ("hf:org/x@v1", told("branch", "refs/tags/v1", "hf:org/x@abc"), True),
        ("s3://bucket/models/x", told("ready", "", "s3://bucket/models/x@abc"), True),
        ("s3://bucket/models/y", told("ready", "", "s3://bucket/models/x@abc"), False),
        ("hf:/srv/models/x", told("asked", "", "hf:/srv/models/y"), False),
    ],
)
def test_a_spec_that_names_what_an_event_tells_of_follows_it(own: str, told: Event, is_tracked: bool) -> None:
    _write(f"name: ranker\nsource: {own}\n")
    rule = {"spec": SPEC, "when": told.change, "value": "*"}
    config = service(rule)
    (order,) = _orders(config, told)
    assert order.wanted.spec.source_override == SourceOverride(replaces=own, is_tracked=is_tracked, at=AT)


def test_another_service_or_pool_has_another_key() -> None:
    rule = {"spec": SPEC}
    services = [service(rule), service(rule, name="staging"), service(rule, pools={"other": {}})]
    assert len({key for one in services for key in _keys(one, champion())}) == 3


def test_when_an_event_came_makes_no_other_key() -> None:
    config = service({"spec": SPEC})
    assert {one.key for at in (1.0, 2.0) for one in orders_of(config, champion(), TOOLS, at)} == set(
        _keys(config, champion())
    )


def test_what_was_approved_first_gives_way_to_what_was_approved_later_in_whichever_order_they_came() -> None:
    runs = KnownRuns()
    builder = Builder(service({"spec": SPEC}), runs, lambda _: True)
    came = datetime.fromtimestamp(AT, UTC)
    for at in (0.0, AT - 60):
        entry = InboxEntry(
            id=1,
            registry="mlflow",
            delivery="d",
            event=champion().model_copy(update={"at": at}),
            content_key="c",
            received_at=came,
            state="in-work",
            attempts=1,
            next_try_at=came,
        )
        builder.build(entry, lambda: True, lambda _: None)
    assert [order.wanted.spec.source_override.at for order, _ in runs.asked if order.wanted.spec.source_override] == [
        AT,
        AT - 60,
    ]


def test_a_model_keeps_the_name_that_its_own_source_gives_it() -> None:
    _write("source: hf:org/ranker\n")
    (order,) = _orders(service({"spec": SPEC}), champion("other"))
    assert (order.wanted.model, order.wanted.parameters["spec"]["name"]) == ("ranker", "ranker")


def test_the_first_rule_that_matches_decides_and_an_event_that_none_wants_becomes_nothing() -> None:
    _write("name: second\nsource: hf:org/second\n", "specs/second.yaml")
    config = service({"spec": SPEC, "model": "ra*"}, {"spec": "specs/second.yaml", "value": "champion"})
    assert [_names(config, champion(model)) for model in ("ranker", "x")] == [["ranker"], ["second"]]
    assert _orders(service({"spec": SPEC, "value": "challenger"}), champion()) == ()


def test_an_event_of_a_registry_that_the_file_does_not_name_is_left_to_a_person() -> None:
    with pytest.raises(UsageError, match="has no registry closed, but mlflow") as refused:
        _orders(service({"spec": SPEC}), champion().model_copy(update={"registry": "closed"}))
    assert "retry this entry, or drop it" in refused.value.remedy


@pytest.mark.parametrize("named_by", ["rule", "spec"])
def test_each_target_has_a_run_in_the_pool_that_builds_for_it(named_by: str) -> None:
    targets = ["local-cpu", "triton-26.03"]
    if named_by == "spec":
        _write(f"{RANKER}target: {targets}\n")
    rule = {"spec": SPEC, "targets": targets} if named_by == "rule" else {"spec": SPEC}
    pools = {"first": {}, "gpus": {"targets": ["triton-26.03"]}}
    found = _orders(service(rule, pools=pools), champion())
    assert [(one.wanted.target, one.pool) for one in found] == [("local-cpu", "first"), ("triton-26.03", "gpus")]
    assert [one.wanted.parameters["spec"]["repository"] for one in found] == [
        f"specs/../made/repository/{target}" for target in targets
    ]


def test_the_same_content_has_the_same_key_whatever_told_of_it() -> None:
    config = service({"spec": SPEC}, {"spec": SPEC, "when": "created"})
    created = champion().model_copy(update={"change": "created", "value": ""})
    assert _keys(config, champion()) == _keys(config, created)


def test_another_version_spec_target_or_toolchain_has_another_key() -> None:
    config = service({"spec": SPEC})
    keys = [
        *_keys(config, champion()),
        *_keys(config, champion(version="4")),
        *_keys(service({"spec": SPEC, "targets": ["triton-26.03"]}), champion()),
        *(one.key for one in orders_of(config, champion(), "newer tools", AT)),
    ]
    _write(f"{RANKER}precision: fp16\n")
    keys += _keys(config, champion())
    assert len(set(keys)) == len(keys) == 5


WRONG: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "there is none": (None, ("there is no spec file specs/ranker.yaml",)),
    "it is no spec": ("source: hf:org/ranker\nprecison: fp16\nshapes: 7\n", ("precison", "shapes")),
    "it has several sources": (
        "models: [{source: hf:org/a}, {source: hf:org/b}]\n",
        ("models of several sources (hf:org/a, hf:org/b)",),
    ),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_spec_that_cannot_be_built_is_refused_in_words(text: str | None, says: tuple[str, ...]) -> None:
    Path(SPEC).unlink() if text is None else _write(text)
    with pytest.raises(UsageError) as refused:
        _orders(service({"spec": SPEC}), champion())
    assert not [words for words in says if words not in refused.value.message]
    assert refused.value.remedy


def test_models_of_one_source_are_all_built_from_that_of_the_event() -> None:
    _write("defaults: {source: hf:org/ranker}\nmodels: [{name: small, precision: int8}, {name: exact}]\n")
    found = _orders(service({"spec": SPEC}), champion())
    assert [(one.wanted.model, one.wanted.spec.source) for one in found] == [
        ("small", "mlflow:models:/ranker/3"),
        ("exact", "mlflow:models:/ranker/3"),
    ]


def test_rules_whose_specs_cannot_be_read_are_named() -> None:
    found = list(spec_problems(service({"spec": SPEC}, {"spec": "specs/absent.yaml"})))
    assert found == [(1, f"there is no spec file specs/absent.yaml in {Path.cwd()}")]


def test_rules_for_targets_that_there_are_not_are_named_but_for_those_of_files_that_builders_have() -> None:
    _write(f"{RANKER}target: nowhere\n", "specs/lost.yaml")
    known = {"spec": SPEC, "targets": ["local-cpu", "triton-26.03-cpu", "/srv/ours.yaml"]}
    found = list(spec_problems(service(known, {"spec": SPEC, "targets": ["nosuch"]}, {"spec": "specs/lost.yaml"})))
    assert [(number, words.partition(" (")[0]) for number, words in found] == [
        (1, "there is no target 'nosuch'"),
        (2, "there is no target 'nowhere'"),
    ]
    assert all("`plansmith targets` lists all" in words for _, words in found)


def _write(text: str, path: str = SPEC) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(text)


def _orders(config: ServiceConfig, event: Event) -> tuple[Order, ...]:
    return orders_of(config, event, TOOLS, AT)


def _names(config: ServiceConfig, event: Event) -> list[str]:
    return [one.wanted.model for one in _orders(config, event)]


def _keys(config: ServiceConfig, event: Event) -> list[Any]:
    return [one.key for one in _orders(config, event)]
