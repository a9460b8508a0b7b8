"""`plansmith triggers inbox`: a person sees what waits and why, and decides about what was set aside."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plansmith.triggers.inbox.entry import StartedRun
from plansmith.triggers.inbox.inbox import Inbox, open_inbox

from ...support.cli.command import CommandLine, check_refusal
from ...support.triggers.inboxes import REGISTRY, event

SERVICE = """
directory: ..
specs: [specs]
pools: {local: {}}
triggers:
  database: DATABASE
  registries: {mlflow: {type: mlflow, tracking_uri: "http://127.0.0.1:5000", write_back: true}}
  rules: [{registry: mlflow, model: "*", when: alias, value: champion, spec: specs/ranker.yaml}]
"""
INBOX = ("triggers", "inbox")


@pytest.fixture
def run(run_alone: CommandLine) -> CommandLine:
    """`plansmith` in a folder with the file of a service."""
    (run_alone.folder / "configs").mkdir()
    (run_alone.folder / "configs" / "service.yaml").write_text(SERVICE.replace("DATABASE", "sqlite:///inbox.db"))
    return run_alone


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    """One entry in each state: 1 is done, 2 set aside, 3 in work, 4 put off, 5 waits."""
    new_inbox = open_inbox(f"sqlite:///{tmp_path}/inbox.db")
    new_inbox.take(REGISTRY, "d-1", [event(model, 3) for model in ("ranker", "poison", "busy", "late", "new")])
    now = datetime.now(UTC)
    done, poison, _busy, late = (new_inbox.claim("w", now, 3600) for _ in range(4))
    assert done
    assert poison
    assert late
    new_inbox.finish(done, [StartedRun(id="r-1", address="http://prefect/runs/r-1")])
    new_inbox.set_aside(poison, "no rule builds it\nat all")
    new_inbox.postpone(late, "Prefect does not answer", now + timedelta(hours=1))
    yield new_inbox
    new_inbox.close()


@pytest.mark.slow
def test_inbox_listed_with_reasons(inbox: Inbox, run: CommandLine) -> None:
    """The inbox of the service is listed with reasons and runs."""
    assert inbox.counts()["done"] == 1
    answer = run(*INBOX)
    assert (answer.status, answer.stderr) == (0, "")
    head, columns, *rows = answer.stdout.splitlines()
    assert head == f"sqlite:///{run.folder}/inbox.db: 2 waiting, 1 in work, 1 done, 1 set aside"
    assert columns.split() == ["ID", "RECEIVED", "(UTC)", "REGISTRY", "STATE", "WHAT"]
    assert [row.split()[0] for row in rows] == ["5", "4", "Prefect", "3", "2", "no", "1", "run"]
    assert rows[2].startswith("    Prefect does not answer (1 attempt, again at 20")
    assert rows[4].endswith("mlflow    set aside  poison, version 3 (alias champion)")
    assert rows[5] == "    no rule builds it\\nat all (1 attempt)"
    assert rows[6].endswith("mlflow    started    ranker, version 3 (alias champion)"), "nobody knows how its run ended"
    assert rows[7] == "    run r-1  http://prefect/runs/r-1"
    assert run(*INBOX, "list").stdout == answer.stdout


@pytest.mark.slow
def test_entries_listed_by_state(inbox: Inbox, run: CommandLine) -> None:
    """Entries are listed by state and registry, and as JSON."""
    document = run(*INBOX, "list", "--state", "set-aside", "--json").document
    assert document["database"] == inbox.place
    assert document["counts"] == {"waiting": 2, "in-work": 1, "done": 1, "set-aside": 1}
    (entry,) = document["entries"]
    assert (entry["id"], entry["event"]["model"], entry["reason"]) == (2, "poison", "no rule builds it\nat all")
    assert "lease" not in entry
    assert run(*INBOX, "list", "--registry", "hub", "--json").document["entries"] == []
    assert [row["id"] for row in run(*INBOX, "list", "--limit", "2", "--json").document["entries"]] == [5, 4]


@pytest.mark.slow
def test_set_aside_entries_retried(inbox: Inbox, run: CommandLine) -> None:
    """What was set aside is retried by ID or all at once."""
    assert run(*INBOX, "retry", "--all-set-aside", "--dry-run").stdout == "would be retried: entry 2\n"
    assert inbox.counts()["set-aside"] == 1
    assert run(*INBOX, "retry", "2", "4").stdout == "retried: entries 2, 4\n"
    assert inbox.states(2, 4) == {2: "waiting", 4: "waiting"}
    assert run(*INBOX, "retry", "--all-set-aside", "--json").document == {"dry_run": False, "retried": []}
    assert run(*INBOX, "retry", "--all-set-aside").stdout == "nothing was retried\n"


@pytest.mark.slow
def test_drop_must_be_meant(inbox: Inbox, run: CommandLine) -> None:
    """A drop of entries has to be meant."""
    check_refusal(run(*INBOX, "drop", "2", "5", "--json"), 2, ("what is dropped", "entries 2, 5", "pass --yes"))
    assert run(*INBOX, "drop", "2", "--dry-run").stdout == "would be dropped: entry 2\n"
    assert set(inbox.states(2, 5)) == {2, 5}
    assert run(*INBOX, "drop", "5", "2", "5", "--yes").stdout == "dropped: entries 2, 5\n"
    assert inbox.states(2, 5) == {}


@pytest.mark.slow
def test_registry_reports_shown_and_repeated(inbox: Inbox, run: CommandLine) -> None:
    """It is shown how far registries were told, and they are told again."""

    def line() -> str:
        return run(*INBOX, "list", "--state", "done").stdout.splitlines()[-1]

    assert line().startswith("    run r-1")
    assert run(*INBOX, "list", "--state", "done", "--json").document["entries"][0]["write_back"] is None
    assert run(*INBOX, "write-back", "1", "--dry-run").stdout == "would be queued for write-back: entry 1\n"
    assert inbox.write_backs.of(1) == {}
    assert run(*INBOX, "write-back", "1", "--json").document == {"dry_run": False, "queued_for_write_back": [1]}
    assert line() == "    the registry is not told yet"
    now = datetime.now(UTC) + timedelta(hours=1)
    write_back = inbox.write_backs.claim("t", now, 60)
    assert write_back
    assert line() == "    the registry is being told"
    assert inbox.write_backs.postpone(write_back, "MLflow is\naway", now, failed=True)
    assert line().startswith("    the registry is not told yet: MLflow is\\naway (1 attempt, again at 20")
    write_back = inbox.write_backs.claim("t", now, 60)
    assert write_back
    assert inbox.write_backs.set_aside(write_back, "there is no such version")
    assert line() == "    the registry was not told: there is no such version (2 attempts)"
    head, _, row, *_ = run(*INBOX, "list", "--not-written-back").stdout.splitlines()
    assert head.endswith("1 set aside; registries: 1 could not be told")
    assert row.split()[0] == "1"
    assert inbox.write_backs.again(1)
    write_back = inbox.write_backs.claim("t", now, 60)
    assert write_back
    assert inbox.write_backs.finish(write_back, "refused")
    assert line().startswith("    the registry was told: refused (20")
    (entry,) = run(*INBOX, "list", "--state", "done", "--json").document["entries"]
    assert (entry["write_back"]["state"], entry["write_back"]["verdict"]) == ("written", "refused")
    assert "lease" not in entry["write_back"]
    document = run(*INBOX, "list", "--not-written-back", "--json").document
    assert document["write_backs"] == {"waiting": 0, "in-work": 0, "written": 1, "set-aside": 0}
    assert document["entries"] == []


@pytest.mark.slow
def test_untold_entries_say_why(inbox: Inbox, run: CommandLine) -> None:
    """What cannot be told says why of each entry."""
    unwanted = inbox.claim("w", datetime.now(UTC), 3600)
    assert unwanted is not None
    inbox.finish(unwanted, [])
    says = (f"entry {unwanted.id} became no run", "entry 2 is set aside", "there is no entry 77")
    for more in ((), ("--dry-run",)):
        check_refusal(run(*INBOX, "write-back", "1", "2", "5", "77", "--json", *more), 2, says)
    service = run.folder / "configs" / "service.yaml"
    service.write_text(service.read_text().replace(", write_back: true", ""))
    says_not_told = ("entry 1 is of the registry mlflow, which is not told (no write_back: true)",)
    check_refusal(run(*INBOX, "write-back", "1", "--json"), 2, says_not_told)
    service.write_text(service.read_text().replace("mlflow:", "other:").replace("registry: mlflow", "registry: other"))
    says_lacks = ("entry 1 is of the registry mlflow, which configs/service.yaml lacks",)
    check_refusal(run(*INBOX, "write-back", "1", "--json"), 2, says_lacks)
    assert inbox.write_backs.of(1) == {}
    assert run(*INBOX, "write-back", "1", "--database", inbox.place).stdout == "queued for write-back: entry 1\n"


ORDER = {
    "a service before retry": (("--service", "F", "retry", "20"), "retry 20 --service F"),
    "an option of its own before its command": (("--days", "3", "prune", "--dry-run"), "prune --dry-run --days 3"),
    "in one word": (("--service=a b", "write-back", "3"), "write-back 3 '--service=a b'"),
    "a value that is called as a command": (("--registry", "drop", "list"), "list --registry drop"),
    "a switch": (("--yes", "drop", "18"), "drop 18 --yes"),
}


@pytest.mark.parametrize(("words", "right"), ORDER.values(), ids=ORDER.keys())
def test_options_before_command_refused(words: tuple[str, ...], right: str, run: CommandLine) -> None:
    """Options before a command are refused with the right order."""
    answer = run(*INBOX, *words)
    assert (answer.status, answer.stdout) == (2, "")
    assert answer.message.startswith("plansmith: options come after their command: ")
    assert answer.message.endswith(f"\nNext: plansmith triggers inbox {right}\n")


REFUSED = {
    "retry of what is in work or not there": (
        ("retry", "1", "2", "3", "77"),
        ("there is no entry 77", "entry 3 is in work", "inbox list"),
    ),
    "telling of what is not done": (
        ("write-back", "1", "2", "4", "77"),
        ("there is no entry 77", "entry 2 is set aside", "entry 4 is waiting"),
    ),
    "drop of what is in work": (("drop", "2", "3", "--yes"), ("entry 3 is in work",)),
    "retry of nothing": (("retry",), ("name entries", "--all-set-aside")),
    "retry of some and all": (("retry", "2", "--all-set-aside"), ("name entries",)),
    "a file that is not there": (("list", "--service", "absent.yaml"), ("there is no file absent.yaml",)),
    "an inbox that is not there": (("list", "--database", "sqlite:///no.db"), ("there is no inbox", "--database")),
    "a URL that is none": (("list", "--database", "inbox.db"), ("no URL of a database",)),
}


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_impossible_request_changes_nothing(
    words: tuple[str, ...], says: tuple[str, ...], inbox: Inbox, run: CommandLine
) -> None:
    """A request that cannot be met is refused, and nothing is changed."""
    before = inbox.entries()
    check_refusal(run(*INBOX, *words, "--json"), 2, says)
    assert inbox.entries() == before
    assert not (run.folder / "no.db").exists()


@pytest.mark.slow
def test_database_named_directly(inbox: Inbox, run: CommandLine) -> None:
    """A database is named in place of the services, or in a variable."""
    service = run.folder / "configs" / "service.yaml"
    service.write_text(SERVICE.replace("DATABASE", "env:INBOX_URL"))
    check_refusal(run(*INBOX, "list", "--json"), 2, ("INBOX_URL", "is not set", "export INBOX_URL="))
    for arguments, variables in ((("--database", "sqlite:///inbox.db"), {}), ((), {"INBOX_URL": "sqlite:///inbox.db"})):
        assert run(*INBOX, "list", "--json", *arguments, **variables).document["database"] == inbox.place


@pytest.mark.slow
def test_service_has_own_database(run: CommandLine) -> None:
    """A service without a database of its own has one in its directory."""
    service = run.folder / "configs" / "service.yaml"
    service.write_text(SERVICE.replace("  database: DATABASE\n", ""))
    open_inbox(f"sqlite:///{run.folder}/plansmith-triggers.db").close()
    answer = run(*INBOX, "list")
    assert answer.stdout == f"sqlite:///{run.folder}/plansmith-triggers.db: 0 waiting, 0 in work, 0 done, 0 set aside\n"


def test_service_without_registry_is_said(run: CommandLine) -> None:
    """A service that hears of no registry is said."""
    (run.folder / "configs" / "service.yaml").write_text("specs: [specs]\npools: {local: {}}\n")
    check_refusal(run(*INBOX, "list", "--json"), 2, ("no section `triggers`", "--database"))


@pytest.mark.slow
def test_a_password_is_shown_nowhere(run: CommandLine) -> None:
    answer = run(*INBOX, "list", "--json", "--database", "postgresql://user:geheim@127.0.0.1:1/db?password=geheim")
    check_refusal(answer, 9, ("postgresql://…@127.0.0.1:1/db",))
    assert "geheim" not in answer.stdout + answer.stderr


@pytest.mark.services
def test_postgresql_inbox_is_listed(postgresql_url: str, run: CommandLine) -> None:
    """An inbox in PostgreSQL is listed."""
    inbox = open_inbox(postgresql_url)
    inbox.take(REGISTRY, "d-1", [event("ranker")])
    inbox.close()
    answer = run(*INBOX, "list", "--database", postgresql_url)
    assert "1 waiting" in answer.stdout
    assert ":***@" in answer.stdout
