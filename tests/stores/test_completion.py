"""Completion of models, versions and aliases of a store in bash, zsh and fish."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ZshComplete

from plansmith.cli import cli
from plansmith.cli.store import options as store_completion
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.prune import Pruner, Retention
from plansmith.stores.store import Store

from ..support.cli.command import CommandLine
from ..support.cli.completion import bash
from ..support.stores.filled import fill, let_pass, publish
from ..support.stores.releases import MODEL, make_release
from ..support.stores.s3 import S3

STORE = ("--store", "store")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """`plansmith` beside a store of two models, one of which has versions 2 and 3 still, and a repository."""
    folder = tmp_path_factory.mktemp("completed")
    store = Store(FolderObjects(folder / "store"))
    fill(store, folder / "artifacts", 3)
    store.promote(MODEL, 2, "champion")
    publish(store, make_release(folder / "artifacts" / "repository", 1, model="another"))
    with pytest.MonkeyPatch.context() as patched:
        let_pass(patched, store, 40)
        Pruner(store, Retention(keep=1, seconds=0), dry=False, settle_seconds=0).prune()
    return CommandLine(folder)


OFFERED: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "models": (("versions", *STORE, "an"), [MODEL, "another"]),
    "models of the repository": (("verify", "anot"), ["another"]),
    "versions and aliases": (
        ("promote", *STORE, f"{MODEL}@"),
        [f"{MODEL}@2", f"{MODEL}@3", f"{MODEL}@champion", f"{MODEL}@current"],
    ),
    "the start of an alias": (("diff", *STORE, f"{MODEL}@2", f"{MODEL}@ch"), [f"{MODEL}@champion"]),
    "versions of the repository": (("diff", f"{MODEL}@"), [f"{MODEL}@1", f"{MODEL}@2", f"{MODEL}@3"]),
    "aliases": (("promote", *STORE, f"{MODEL}@2", "c"), ["champion", "current"]),
    "aliases to go back": (("rollback", *STORE, MODEL, "--alias", "cu"), ["current"]),
    "versions of an unknown model": (("pin", *STORE, "third@"), []),
    "models of no store": (("versions", "--store", "artifacts", ""), []),
    "stores": (("verify", "--store", "st"), ["<dir>"]),
}


def taken_apart(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words as bash has them."""
    parts: list[str] = []
    for word in words:
        before, at, after = word.partition("@")
        parts += [part for part in (before, at, after) if part] or [word]
    return tuple(parts)


def offered_for(words: tuple[str, ...]) -> list[str]:
    """What a shell is offered that leaves words whole, as zsh does."""
    completions = ZshComplete(cli, {}, "plansmith", "_PLANSMITH_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return sorted(item.value if item.type == "plain" else f"<{item.type}>" for item in completions)


@pytest.mark.parametrize(("words", "offered"), OFFERED.values(), ids=OFFERED.keys())
def test_shell_offered_store_contents(
    words: tuple[str, ...], offered: list[str], run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell is offered what a store has."""
    monkeypatch.chdir(run.folder)
    assert offered_for(words) == sorted(offered)


WITH_AT = {name: OFFERED[name] for name in ("the start of an alias", "versions of the repository", "aliases")}


@pytest.mark.parametrize(("words", "offered"), WITH_AT.values(), ids=WITH_AT.keys())
def test_bash_completes_after_at_sign(words: tuple[str, ...], offered: list[str], run: CommandLine) -> None:
    """Bash, which takes words apart at the @, is offered what comes from there."""
    before = words[-1].partition("@")[0] if "@" in words[-1] else ""
    assert sorted(bash(run, taken_apart(words))) == sorted(word.removeprefix(before) for word in offered)


@pytest.mark.slow
def test_s3_store_asked_for_completion(
    s3: S3, tmp_path: Path, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store in S3 is asked."""
    monkeypatch.setattr(store_completion, "_MOST_SECONDS", 60)
    fill(s3_store, tmp_path, 1)
    reach = ("--store", s3_store.place, "--endpoint-url", s3.endpoint)
    assert offered_for(("versions", *reach, "")) == [MODEL]
    assert offered_for(("promote", *reach, f"{MODEL}@c")) == [f"{MODEL}@current"]


@pytest.mark.usefixtures("aws")
def test_silent_store_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer is not waited for."""
    monkeypatch.setattr(store_completion, "_MOST_SECONDS", 0.01)
    assert offered_for(("versions", "--store", "s3://models", "--endpoint-url", "http://127.0.0.1:9", "")) == []
