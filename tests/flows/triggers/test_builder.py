"""Which compiles an event becomes: the rule's spec with the event's source, for each target, in its pool."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.service import ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.triggers.builder import Builder, Order, orders_of, spec_problems
from plansmith.records.release import SourceOverride
from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.registries.delivery import Event

from ...support.triggers.known_runs import KnownRuns, champion, service

SPEC = "specs/ranker.yaml"
RANKER = "name: ranker\nsource: hf:org/ranker\nartifacts: ../made\n"
TOOLS = "tools"
AT = 1795165608.0


def registry_event(change: str, value: str = "", source: str = "mlflow:models:/ranker/3") -> Event:
    """Something that a registry told of a model."""
    model = "org/x" if change == "branch" else "x" if change == "ready" else "ranker"
    return champion(model, source=source).model_copy(update={"change": change, "value": value})


@pytest.fixture(autouse=True)
def service_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the service, with a spec; whoever builds works there."""
    monkeypatch.chdir(tmp_path)
    _write(RANKER)
    return tmp_path


def test_event_compiles_exact_version() -> None:
    """An event becomes a compile of exactly its version by the rule's spec."""
    (order,) = _orders(service({"spec": SPEC}), champion())
    assert order.pool == "first"
    assert (order.request.model, order.request.target) == ("ranker", "local-cpu")
    # Places are relative: each machine has its own directory of the service.
    assert order.request.parameters == {
        "spec": {
            "name": "ranker",
            "source": "mlflow:models:/ranker/3",
            "source_override": {"replaces": "hf:org/ranker", "is_tracked": False, "at": AT},
            "artifacts": "specs/../made",
        },
        "folder": "specs",
        "directory": ".",
    }


def test_event_without_source_keeps_spec() -> None:
    """An event without a source leaves the source of the spec."""
    (order,) = _orders(service({"spec": SPEC}), champion(source=""))
    assert order.request.spec.source == "hf:org/ranker"


def test_event_of_own_source_chooses_nothing() -> None:
    """An event that names the spec's own source chooses nothing else."""
    (order,) = _orders(service({"spec": SPEC}), champion(source="hf:org/ranker"))
    assert (order.request.spec.source, order.request.spec.source_override) == ("hf:org/ranker", None)


@pytest.mark.parametrize(
    ("own", "event", "is_tracked"),
    [
        ("mlflow:models:/ranker@champion", champion(), True),
        ("mlflow:models:/ranker@other", champion(), False),
        ("mlflow:models:/other@champion", champion(), False),
        ("mlflow:models:/ranker/latest", champion(), False),
        ("mlflow:models:/ranker/latest", registry_event("created"), True),
        ("mlflow:models:/ranker@champion", registry_event("tag", "compile=requested"), False),
        ("hf:org/x", registry_event("branch", "refs/heads/main", "hf:org/x@abc"), True),
        ("hf:org/x@main", registry_event("branch", "refs/heads/main", "hf:org/x@abc"), True),
        ("hf:org/x", registry_event("branch", "refs/heads/prod", "hf:org/x@abc"), False),
        ("hf:org/x@v1", registry_event("branch", "refs/tags/v1", "hf:org/x@abc"), True),
        ("s3://bucket/models/x", registry_event("ready", "", "s3://bucket/models/x@abc"), True),
        ("s3://bucket/models/y", registry_event("ready", "", "s3://bucket/models/x@abc"), False),
        ("hf:/srv/models/x", registry_event("asked", "", "hf:/srv/models/y"), False),
    ],
)
def test_naming_spec_follows_event(own: str, event: Event, is_tracked: bool) -> None:
    """A spec that names what an event tells of follows it."""
    _write(f"name: ranker\nsource: {own}\n")
    rule = {"spec": SPEC, "when": event.change, "value": "*"}
    config = service(rule)
    (order,) = _orders(config, event)
    assert order.request.spec.source_override == SourceOverride(replaces=own, is_tracked=is_tracked, at=AT)


def test_other_service_has_other_key() -> None:
    """Another service or pool has another key."""
    rule = {"spec": SPEC}
    services = [service(rule), service(rule, name="staging"), service(rule, pools={"other": {}})]
    assert len({key for config in services for key in _keys(config, champion())}) == 3


def test_event_time_leaves_key() -> None:
    """The time of an event makes no other key."""
    config = service({"spec": SPEC})
    assert {order.key for at in (1.0, 2.0) for order in orders_of(config, champion(), TOOLS, at)} == set(
        _keys(config, champion())
    )


def test_later_approval_wins() -> None:
    """An earlier approval gives way to a later one, in whichever order they came."""
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
    assert [
        order.request.spec.source_override.at for order, _ in runs.requests if order.request.spec.source_override
    ] == [
        AT,
        AT - 60,
    ]


def test_model_keeps_source_name() -> None:
    """A model keeps the name that its own source gives it."""
    _write("source: hf:org/ranker\n")
    (order,) = _orders(service({"spec": SPEC}), champion("other"))
    assert (order.request.model, order.request.parameters["spec"]["name"]) == ("ranker", "ranker")


def test_first_matching_rule_decides() -> None:
    """The first rule that matches decides and an event that none wants becomes nothing."""
    _write("name: second\nsource: hf:org/second\n", "specs/second.yaml")
    config = service({"spec": SPEC, "model": "ra*"}, {"spec": "specs/second.yaml", "value": "champion"})
    assert [_names(config, champion(model)) for model in ("ranker", "x")] == [["ranker"], ["second"]]
    assert _orders(service({"spec": SPEC, "value": "challenger"}), champion()) == ()


def test_unknown_registry_event_left_alone() -> None:
    """An event of a registry that the file does not name is left to a person."""
    with pytest.raises(UsageError, match="has no registry closed, but mlflow") as refused:
        _orders(service({"spec": SPEC}), champion().model_copy(update={"registry": "closed"}))
    assert "retry this entry, or drop it" in refused.value.remedy


@pytest.mark.parametrize("named_by", ["rule", "spec"])
def test_target_runs_in_its_pool(named_by: str) -> None:
    """Each target has a run in the pool that builds for it."""
    targets = ["local-cpu", "triton-26.03"]
    if named_by == "spec":
        _write(f"{RANKER}target: {targets}\n")
    rule = {"spec": SPEC, "targets": targets} if named_by == "rule" else {"spec": SPEC}
    pools = {"first": {}, "gpus": {"targets": ["triton-26.03"]}}
    orders = _orders(service(rule, pools=pools), champion())
    assert [(order.request.target, order.pool) for order in orders] == [
        ("local-cpu", "first"),
        ("triton-26.03", "gpus"),
    ]
    assert [order.request.parameters["spec"]["repository"] for order in orders] == [
        f"specs/../made/repository/{target}" for target in targets
    ]


def test_same_content_has_same_key() -> None:
    """The same content has the same key, whatever told of it."""
    config = service({"spec": SPEC}, {"spec": SPEC, "when": "created"})
    created = champion().model_copy(update={"change": "created", "value": ""})
    assert _keys(config, champion()) == _keys(config, created)


def test_changed_input_has_other_key() -> None:
    """Another version spec target or toolchain has another key."""
    config = service({"spec": SPEC})
    keys = [
        *_keys(config, champion()),
        *_keys(config, champion(version="4")),
        *_keys(service({"spec": SPEC, "targets": ["triton-26.03"]}), champion()),
        *(order.key for order in orders_of(config, champion(), "newer tools", AT)),
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
def test_unbuildable_spec_refused(text: str | None, says: tuple[str, ...]) -> None:
    """A spec that cannot be built is refused in words."""
    Path(SPEC).unlink() if text is None else _write(text)
    with pytest.raises(UsageError) as refused:
        _orders(service({"spec": SPEC}), champion())
    assert not [fragment for fragment in says if fragment not in refused.value.message]
    assert refused.value.remedy


def test_models_of_source_all_built() -> None:
    """All models of one source are built from that of the event."""
    _write("defaults: {source: hf:org/ranker}\nmodels: [{name: small, precision: int8}, {name: exact}]\n")
    orders = _orders(service({"spec": SPEC}), champion())
    assert [(order.request.model, order.request.spec.source) for order in orders] == [
        ("small", "mlflow:models:/ranker/3"),
        ("exact", "mlflow:models:/ranker/3"),
    ]


def test_unreadable_rules_are_named() -> None:
    """Rules whose specs cannot be read are named."""
    problems = list(spec_problems(service({"spec": SPEC}, {"spec": "specs/absent.yaml"})))
    assert problems == [(1, f"there is no spec file specs/absent.yaml in {Path.cwd()}")]


def test_rules_for_missing_targets_named() -> None:
    """Rules for missing targets are named, except for those of files that builders have."""
    _write(f"{RANKER}target: nowhere\n", "specs/lost.yaml")
    rule = {"spec": SPEC, "targets": ["local-cpu", "triton-26.03-cpu", "/srv/ours.yaml"]}
    problems = list(spec_problems(service(rule, {"spec": SPEC, "targets": ["nosuch"]}, {"spec": "specs/lost.yaml"})))
    assert [(number, message.partition(" (")[0]) for number, message in problems] == [
        (1, "there is no target 'nosuch'"),
        (2, "there is no target 'nowhere'"),
    ]
    assert all("`plansmith targets` lists all" in message for _, message in problems)


def _write(text: str, path: str = SPEC) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(text)


def _orders(config: ServiceConfig, event: Event) -> tuple[Order, ...]:
    return orders_of(config, event, TOOLS, AT)


def _names(config: ServiceConfig, event: Event) -> list[str]:
    return [order.request.model for order in _orders(config, event)]


def _keys(config: ServiceConfig, event: Event) -> list[Any]:
    return [order.key for order in _orders(config, event)]
