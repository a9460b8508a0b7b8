"""`plansmith triggers serve` before it takes deliveries: what is wrong is one clear error, or said and gone on with."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.config.service import ServiceConfig
from plansmith.config.service_triggers import TriggersConfig
from plansmith.errors import UsageError
from plansmith.flows.triggers.builder import spec_problems
from plansmith.triggers.configuration import find_secrets, shared_specs
from plansmith.triggers.registries.rules import rule_problems
from plansmith.triggers.serving import log_as_json

from ...support.cli.command import CommandLine
from ...support.prefect.programs import free_port
from ...support.triggers.mlflow_server import Mlflow, serving

pytestmark = pytest.mark.slow

API = {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}
CHECKOUT = Path(__file__).parents[3]
SERVE = ("triggers", "serve")
DRY = (*SERVE, "--dry-run", "--no-poll")
REGISTRIES = {
    "ours": {"type": "mlflow", "tracking_uri": "http://127.0.0.1:5000", "secrets": ["env:OLD", "env:NEW"]},
    "hub": {"type": "hub", "secrets": ["block:hub-secret"]},
    "quiet": {"type": "mlflow", "tracking_uri": "http://127.0.0.1:5000"},
}


@pytest.fixture
def run(tmp_path: Path) -> CommandLine:
    """`plansmith` in a folder with a service, its spec and its secrets' names."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "ranker.yaml").write_text("source: hf:org/ranker\n")
    _write(tmp_path)
    return CommandLine(tmp_path)


def test_dry_run_without_prefect(run: CommandLine) -> None:
    """A dry run says what would be heard, without Prefect, and makes nothing."""
    answer = run(*DRY, SECRET="a", PREFECT_API_URL="")
    assert (answer.status, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == [
        "configs/service.yaml: 1 rule for ours",
        "ours (mlflow), hears /hooks/ours",
        "  ranker: alias  ->  specs/ranker.yaml  for local-cpu",
        "nothing was started",
    ]
    assert sorted(path.name for path in run.folder.iterdir()) == ["configs", "specs"]


def test_unbuildable_rules_are_one_error(run: CommandLine) -> None:
    """All that keeps rules from building is one error with its lines."""
    rules = [{}, {"spec": "specs/absent.yaml"}, {"when": "branch"}, {"spec": "specs"}]
    _write(run.folder, *({"model": f"m{number}", **rule} for number, rule in enumerate(rules)))
    answer = run(*SERVE, **API)
    assert (answer.status, answer.stdout) == (2, "")
    assert "4 problems in the file of the service:\n" in answer.message
    for fragment in (
        "triggers.rules.1: there is no spec file specs/absent.yaml",
        "triggers.rules.2 never matches: ours is of type mlflow",
        "triggers.rules.3: specs is a folder: a rule names one spec file, such as specs/ranker.yaml",
        "secrets are missing: env:SECRET is not set",
    ):
        assert re.search(rf"configs/service.yaml:\d+: {re.escape(fragment)}", answer.message), fragment


def test_dry_run_asks_running_registry(run: CommandLine) -> None:
    """A dry run asks a registry that is there for the models of all rules."""
    with serving(Mlflow()) as mlflow:
        mlflow.add("ranker", 1)
        mlflow.aliases["ranker"] = {"champion": "1"}
        absent = [{"model": "gone", "when": when, "value": "*"} for when in ("alias", "tag")]
        _write(run.folder, {}, *absent, {"model": "x*", "when": "tag"}, registry={"tracking_uri": mlflow.url})
        answer = run(*SERVE, "--dry-run", "--json", SECRET="a")
        cautions = [line for line in answer.stderr.splitlines() if "triggers.registries." in line]
        assert (answer.status, cautions) == (
            0,
            [
                f"plansmith: caution: triggers.registries.ours: no model at {mlflow.url} is called like 'x*'",
                f"plansmith: caution: triggers.registries.ours: there is no model 'gone' at {mlflow.url}",
            ],
        )
        plan = json.loads(answer.stdout)
        event, targets = "ranker, version 1 (alias champion)", ["local-cpu"]
        expected = {"registry": "ours", "event": event, "spec": "specs/ranker.yaml", "targets": targets}
        assert plan["builds"] == [expected]
        assert plan["registries"] == {"ours": {"type": "mlflow", "hook": "/hooks/ours", "poll_seconds": 300}}
        mlflow.answer = (403, b"")
        assert "triggers.registries.ours: it cannot be asked: " in run(*SERVE, "--dry-run", SECRET="a").stderr


def test_registry_without_secrets_refused(run: CommandLine) -> None:
    """A registry without secrets is said to be refused."""
    _write(run.folder, registry={"secrets": []})
    answer = run(*DRY)
    assert answer.status == 0
    caution = "triggers.registries.ours has no secrets: all that it sends is refused"
    assert answer.stderr == f"plansmith: caution: {caution}\n"


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, str], int, tuple[str, ...]]] = {
    "no file": (("--service", "absent.yaml"), API, 2, ("there is no file absent.yaml", "--service")),
    "no secret": ((), API, 2, ("env:SECRET is not set", "export the variable")),
    "no host": (("--host", "nowhere.invalid"), {**API, "SECRET": "a"}, 2, ("no host nowhere.invalid", "--host")),
}


@pytest.mark.parametrize(("words", "variables", "status", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_missing_requirement_is_clear_error(
    words: tuple[str, ...], variables: dict[str, str], status: int, says: tuple[str, ...], run: CommandLine
) -> None:
    """What it cannot do without is one clear error."""
    answer = run(*SERVE, *words, PREFECT_HOME=str(run.folder / "home"), **variables)
    assert (answer.status, answer.stdout) == (status, "")
    assert not [fragment for fragment in (*says, "\nNext: ") if fragment not in answer.message], answer.message


def test_shared_secret_is_said(run: CommandLine) -> None:
    """Two registries with one secret are said."""
    path = run.folder / "configs" / "service.yaml"
    whole = json.loads(path.read_text())
    registries = whole["triggers"]["registries"]
    registries["theirs"] = registries["ours"] | {"secrets": ["env:OTHER", "env:SECRET"]}
    registries["ci"] = {"type": "hook", "secrets": ["env:SECRET"]}
    path.write_text(json.dumps(whole))
    answer = run(*DRY, SECRET="hidden", OTHER="b")
    assert (answer.status, "hidden" in answer.stderr) == (0, False)
    assert answer.stderr.splitlines() == [
        (
            "plansmith: caution: triggers.registries.ours and theirs have a secret in common: what is sent to one is"
            " taken for the other, too"
        )
    ]


def test_taken_port_is_clear_error(run: CommandLine) -> None:
    """A port that is taken is one clear error."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port = str(listener.getsockname()[1])
        answer = run(*SERVE, "--no-worker", "--port", port, SECRET="a")
    assert (answer.status, answer.stdout) == (9, "")
    assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in answer.message
    assert "--port" in answer.message


def test_deaf_service_is_said(run: CommandLine) -> None:
    """A service that hears of nothing is said."""
    (run.folder / "configs" / "service.yaml").write_text("specs: [specs]\npools: {local: {}}\n")
    answer = run(*SERVE)
    assert "no section `triggers`" in answer.message
    assert "--database" not in answer.message


@pytest.mark.parametrize(("shown_in", "number"), [("docs/triggers.md", 1), ("configs/service.yaml", 1)])
def test_shown_triggers_can_build(shown_in: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The triggers that are shown are right and each of their rules can build."""
    text = (CHECKOUT / shown_in).read_text()
    if shown_in.startswith("docs/"):
        shown = re.findall(r"```yaml\n(# configs/service.yaml\n.*?)```", text, re.DOTALL)
    else:
        shown = ["\n".join(line.removeprefix("# ") for line in text[text.index("# triggers:\n") :].splitlines())]
    assert len(shown) == number
    monkeypatch.chdir(CHECKOUT)
    for example in shown:
        values = {"specs": ["configs/models"], "pools": {"local": {}}, **yaml.safe_load(example)}
        config = ServiceConfig.model_validate(values)
        assert config.triggers is not None
        assert [*rule_problems(config.triggers), *spec_problems(config)] == []
        assert list(shared_specs(config.triggers)) == []


def test_rules_for_one_model_said(run: CommandLine) -> None:
    """Two rules for one model are told at the start, with the one that decides."""
    _write(run.folder, {"model": "ranker-*"}, {"model": "*-fr"})
    answer = run(*DRY, SECRET="a")
    assert answer.status == 0
    both = "triggers.rules.1 and rules.0 both take alias * of ranker-* with *-fr: rules.0 decides, as it comes first"
    assert answer.stderr.splitlines()[0] == f"plansmith: caution: {both}"
    _write(run.folder, {"model": "ranker-*"}, {"model": "ranker-fr"})
    answer = run(*DRY, SECRET="a")
    assert answer.status == 2
    assert "triggers.rules.1 never matches: rules.0 comes first and takes all that it would" in answer.message


SHARED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a pattern": ([{"model": "minilm*"}], "rules.0: versions of every minilm* (registry ours)"),
    "two models, one file": (
        [{}, {"model": "tagger", "spec": "./specs/ranker.yaml"}],
        "rules.0 and rules.1: versions of ranker (registry ours) and tagger (registry ours)",
    ),
    "one name in two registries": (
        [{}, {"registry": "shelf", "when": "ready"}],
        "rules.0 and rules.1: versions of ranker (registry ours) and ranker (registry shelf)",
    ),
    "a third, for all": (
        [{"value": "a"}, {"value": "b"}, {"model": "*", "when": "tag", "value": "a=b"}],
        "rules.0, rules.1 and rules.2: versions of ranker (registry ours) and every * (registry ours)",
    ),
}


@pytest.mark.parametrize(("rules", "says"), SHARED.values(), ids=SHARED.keys())
def test_merging_models_are_caution(rules: list[dict[str, Any]], says: str, run: CommandLine) -> None:
    """Models that become one served model are a caution and no failure."""
    _write(run.folder, *rules)
    answer = run(*DRY, SECRET="a")
    assert answer.status == 0
    (line,) = (line for line in answer.stderr.splitlines() if " decides" not in line)
    assert line.startswith(f"plansmith: caution: triggers.{says} become releases of one served model, that of specs/")


ALONE: dict[str, list[dict[str, Any]]] = {
    "one model by several rules": [{}, {"when": "tag", "value": "a=b"}],
    "a spec for each model": [{}, {"model": "tagger", "spec": "specs/tagger.yaml"}],
    "models for different targets": [{"targets": ["local-cpu"]}, {"model": "tagger", "targets": ["triton-26.03"]}],
    "a hook that names no source": [{"registry": "ci", "model": "*", "when": "asked"}, {}],
}


@pytest.mark.parametrize("rules", ALONE.values(), ids=ALONE.keys())
def test_specs_of_one_model_unmentioned(rules: list[dict[str, Any]], run: CommandLine) -> None:
    """Nothing is said of specs that stand for one model."""
    (run.folder / "specs" / "tagger.yaml").write_text("source: hf:org/tagger\n")
    _write(run.folder, *rules)
    answer = run(*DRY, SECRET="a", OTHER="b")
    assert (answer.status, answer.stderr) == (0, "")


def test_help_shows_how(run: CommandLine) -> None:
    answer = run(*SERVE, "--help")
    assert "plansmith triggers serve --dry-run" in answer.stdout


def test_secrets_found_per_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are found in variables and blocks, each registry's own."""
    monkeypatch.setenv("OLD", "a")
    monkeypatch.setenv("NEW", "b")
    secrets = find_secrets(_registries(), {"hub-secret": "c"}.__getitem__)
    assert secrets == {"ours": ("a", "b"), "hub": ("c",)}


def test_missing_secrets_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All secrets that are missing are named and none is shown."""
    monkeypatch.setenv("OLD", "")
    monkeypatch.setenv("NEW", "hidden")

    def absent(name: str) -> str:
        raise UsageError(f"there is no block {name}", remedy="make one")

    with pytest.raises(UsageError) as refused:
        find_secrets(_registries(), absent)
    assert refused.value.message == "secrets are missing: env:OLD is not set, or empty; there is no block hub-secret"


@pytest.mark.parametrize("value", ["hidden\n", " hidden", "hid\udcff", "hid\tden"])
def test_unsendable_secret_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that nobody could send is named and not shown."""
    monkeypatch.setenv("OLD", value)
    monkeypatch.setenv("NEW", "b")
    with pytest.raises(UsageError, match="env:OLD begins or ends with a space or a line break, or is no text") as error:
        find_secrets(_registries(), {"hub-secret": "c"}.__getitem__)
    assert "hid" not in error.value.message


def test_logs_are_json_lines() -> None:
    """What is logged is lines of JSON, also by the server."""
    stream = io.StringIO()
    names = ("plansmith.deliveries", "plansmith.builds", "uvicorn.error", "asyncio")
    before = [(logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in names]
    try:
        log_as_json(stream)
        logging.getLogger(names[0]).info(json.dumps({"event": "delivery"}))
        odd = ValueError("odd\nthing")
        logging.getLogger(names[2]).error("Exception in ASGI application", exc_info=odd)
        logging.getLogger(names[2]).warning("Invalid HTTP request received.")
        logging.getLogger(names[3]).error("socket.accept() out of system resource")
    finally:
        for name, (handlers, propagate) in zip(names, before, strict=True):
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert first == {"event": "delivery"}
    assert (second["event"], second["reason"]) == ("server", "ValueError: odd")
    assert "ValueError" in second["traceback"]
    assert third["reason"] == "socket.accept() out of system resource"


def _registries() -> Any:
    rules = [{"registry": "ours", "model": "*", "when": "alias", "spec": "a.yaml"}]
    return TriggersConfig.model_validate({"registries": REGISTRIES, "rules": rules}).registries


def _write(folder: Path, *rules: dict[str, Any], registry: dict[str, Any] | None = None) -> None:
    """The file of a service with one registry and rules about its aliases."""
    common = {"registry": "ours", "model": "ranker", "when": "alias", "spec": "specs/ranker.yaml"}
    ours = {"type": "mlflow", "tracking_uri": "http://127.0.0.1:5000", "secrets": ["env:SECRET"]} | (registry or {})
    every = {"shelf": {"type": "folder", "path": "shelf"}, "ci": {"type": "hook", "secrets": ["env:OTHER"]}}
    others = {name: settings for name, settings in every.items() if any(rule.get("registry") == name for rule in rules)}
    whole = {
        "directory": "..",
        "specs": ["specs"],
        "pools": {"local": {}},
        "triggers": {"registries": {"ours": ours, **others}, "rules": [common | rule for rule in rules or ({},)]},
    }
    (folder / "configs" / "service.yaml").write_text(json.dumps(whole))
