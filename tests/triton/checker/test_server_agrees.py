"""What a check calls an error the real server refuses, and what it passes the server loads."""

from __future__ import annotations

import json
import re
import select
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import OK, HTTPConnection
from pathlib import Path

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import ServedCheckError
from plansmith.triton.checker.checker import check_repository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ...support.checker.cases import BROKEN_CASES, COMPLETED, ENDS, FALLS, LOADS, PROGRAM, SOUND, SOUND_CASES, Case
from ...support.checker.written import Written

COMPLETES_NOTHING = ("--disable-auto-complete-config",)
"""With it, most of what is broken is refused before a Python stub is started for it, which takes half a second."""

_LATE = ("config.duplicate-input", "files.", "warmup.")
_AT_ONCE = 4
_LOAD_SECONDS = 300


def errors_of(root: Path, arguments: Iterable[str] = ()) -> set[str]:
    """The models that a check calls broken."""
    findings = check_repository(root, target=load_target("local-cpu"), arguments=tuple(arguments))
    return {finding.model for finding in findings if finding.severity == "error"}


def write(written: Written, cases: Mapping[str, Case], site: Path) -> None:
    """Write the models, with programs that find the NumPy that the stub can use."""
    for name, case in cases.items():
        files = {
            path: content.replace("SITE", str(site)) if isinstance(content, str) else content
            for path, content in case.files.items()
        }
        written.add(name, case.config, files)


def refused_by(server: TritonServer, models: Iterable[str], at_once: int = 1) -> dict[str, str]:
    """The models that a server does not load when it is asked to, and why."""

    def reason(model: str) -> str:
        connection = HTTPConnection(server.http_url)
        deadline = time.monotonic() + _LOAD_SECONDS
        try:
            connection.request("POST", f"/v2/repository/models/{model}/load", body="{}")
            # The Python stubs of a server that ended keep its connections open for as long as they live.
            while not select.select([connection.sock], [], [], 1)[0]:
                if (status := server.wait(0)) is not None:
                    raise server.obituary(status, f"while it loaded {model}")
                assert time.monotonic() < deadline, f"{model} is neither loaded nor refused: {server.log.read_text()}"
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        return "" if answer.status == OK else str(json.loads(content)["error"])

    listed = list(models)
    with ThreadPoolExecutor(at_once) as pool:
        return {model: why for model, why in zip(listed, pool.map(reason, listed), strict=True) if why}


def fails_late(case: Case) -> bool:
    """Whether a model is refused when its instance runs already.

    Several of them at once end Triton 2.51 with a fault of its own now and then; one after the other they do not.
    """
    return not case.unjudged and any(rule.startswith(_LATE) for rule in case.rules)


JUDGED = {name: case for name, case in {**SOUND_CASES, **BROKEN_CASES}.items() if case.unjudged in {"", LOADS}}
REFUSED_AT_ONCE = {
    name: case for name, case in JUDGED.items() if case.rules and not case.unjudged and not fails_late(case)
}
STARTED = {name: case for name, case in JUDGED.items() if name not in REFUSED_AT_ONCE}


@pytest.mark.parametrize(
    ("cases", "arguments"),
    [
        (REFUSED_AT_ONCE, COMPLETES_NOTHING),
        pytest.param(STARTED, COMPLETES_NOTHING, marks=pytest.mark.slow),
        pytest.param(COMPLETED, (), marks=pytest.mark.slow),
    ],
    ids=["refused at once", "started", "completed"],
)
def test_server_refuses_exactly_errors(
    cases: Mapping[str, Case],
    arguments: tuple[str, ...],
    written: Written,
    installation: Installation,
    site: Path,
    tmp_path: Path,
) -> None:
    """The server refuses what a check calls an error, and loads all else."""
    judged = {name: case for name, case in cases.items() if case.unjudged in {"", LOADS}}
    write(written, judged, site)
    server = TritonServer(
        written.root, installation, tmp_path / "log", site=site, models=(), exit_on_error=False, arguments=arguments
    )
    with server:
        late = [name for name, case in judged.items() if fails_late(case)]
        refused = refused_by(server, set(judged) - set(late), _AT_ONCE) | refused_by(server, late)
    assert refused.keys() == errors_of(written.root, arguments), refused
    assert refused.keys() == {name for name, case in judged.items() if case.rules and not case.unjudged}


def test_server_ending_model_told_before(
    written: Written, installation: Installation, site: Path, tmp_path: Path
) -> None:
    """One of the cases that end the server; each takes one of its own."""
    ending = {name: case for name, case in BROKEN_CASES.items() if case.unjudged == ENDS}
    write(written, ending, site)
    assert errors_of(written.root) == set(ending)
    with (
        pytest.raises(ServedCheckError, match="ended with signal SIGABRT"),
        TritonServer(written.root, installation, tmp_path / "log", models=(), exit_on_error=False) as server,
    ):
        refused_by(server, ["endless-number"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in BROKEN_CASES.items() if case.unjudged == FALLS])
def test_badly_beginning_state_not_loaded(
    name: str, written: Written, installation: Installation, site: Path, tmp_path: Path
) -> None:
    """Triton 2.51 refuses it, or reads what it has given back already: `~TritonModelInstance`, `StopBackendThread`."""
    write(written, {name: BROKEN_CASES[name]}, site)
    assert errors_of(written.root) == {name}
    server = TritonServer(
        written.root,
        installation,
        tmp_path / "log",
        site=site,
        models=(),
        exit_on_error=False,
        arguments=COMPLETES_NOTHING,
    )
    try:
        with server:
            why = refused_by(server, [name])[name]
    except ServedCheckError as ended:
        why = str(ended)
    assert re.search("initial.state|ended with signal SIGSEGV", why), why


@pytest.mark.slow
def test_clients_miss_escaped_names(written: Written, installation: Installation, tmp_path: Path) -> None:
    """Clients do not reach a name that addresses write in another way."""
    written.add("a space", SOUND, PROGRAM)
    assert written.broken() == {("a space", "layout.model-name")}
    with TritonServer(written.root, installation, tmp_path / "log", models=(), exit_on_error=False) as server:
        assert "failed to poll" in refused_by(server, ["a%20space"])["a%20space"]
