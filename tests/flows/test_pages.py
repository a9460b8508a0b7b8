"""A fleet in Prefect's pages, as somebody on call meets it: what ran, what failed and why, and where that is found."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ..support import browser
from ..support.browser import Browser
from ..support.prefect.fleets import FleetRun, children_of, lay_out
from ..support.prefect.prefect_server import LOGIN, PrefectServer
from ..support.waiting import soon

pytestmark = pytest.mark.services

WIDTH, HEIGHT = 1400, 1100
FITS, AJAR = "fits for local-cpu", "ajar for local-cpu"
FAILED = "failed at export, exit code 2"
_WHY = "the model has no input 'nothing'"
_NEXT = "its inputs are x"
_BROKEN = ("Something went wrong", "Can't connect")


@dataclass(frozen=True)
class Pages:
    """Prefect's pages in a browser that is logged in, with the runs of one fleet."""

    chromium: Browser
    address: str
    fleet: str
    runs: dict[str, str]
    artifacts: dict[str, str]

    def check(self, page: str, *says: str) -> None:
        """Open a page and wait until it says all that it must."""
        self.chromium.open(f"{self.address}/{page}", width=WIDTH, height=HEIGHT)
        assert soon(lambda: all(fragment in self.text for fragment in says), expected=True), self.text
        assert not [fragment for fragment in _BROKEN if fragment in self.text], self.text

    @property
    def text(self) -> str:
        """What is to be read on the page."""
        return str(self.chromium.evaluate("document.body.innerText"))


@pytest.fixture(scope="module")
def pages(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The pages after a fleet of which one model is published, and one is not."""
    folder = tmp_path_factory.mktemp("fleet")
    lay_out(folder, "fits")
    lay_out(folder, "ajar", shapes={"nothing": "1x8:2x8:4x8"})
    answer = FleetRun(prefect, folder).answer()
    assert answer.ended == {"ajar": "failed", "fits": "published"}
    run_ids = {name: outcome["run"].rpartition("/")[2] for name, outcome in answer.outcomes.items()}
    fleet = _parent(prefect, run_ids["fits"])
    assert set(children_of(prefect, fleet)) == {FITS, AJAR}
    artifacts = {
        key: str(artifact["id"])
        for run in (fleet, *run_ids.values())
        for key, artifact in prefect.artifacts_of(run).items()
    }
    address = f"http://127.0.0.1:{prefect.port}"
    with browser.running(folder) as chromium:
        chromium.open(address, width=WIDTH, height=HEIGHT)
        login = json.dumps(base64.b64encode(LOGIN.encode()).decode())
        chromium.evaluate(f"localStorage.setItem('prefect-password', {login})")
        yield Pages(chromium, address, fleet, run_ids, artifacts)


def test_run_list_tells_failures(pages: Pages) -> None:
    """The list of runs tells models targets and what failed."""
    pages.check("runs", "fleet: specs", "compile-fleet", FITS, AJAR, "Failed", "Completed")
    pages.check("runs", "plansmith", "model:fits", "model:ajar", "target:local-cpu")


def test_fleet_run_tells_results(pages: Pages) -> None:
    """The run of a fleet tells what it did and what it could not do."""
    log = ("2 models: 2 stale", f"{FITS} is stale: there is no version of it yet", f"{FITS}: published version 1")
    pages.check(f"runs/flow-run/{pages.fleet}", *log, f"{AJAR}: {FAILED}: ", _WHY, "2 models: 1 published, 1 failed")


def test_model_run_tells_steps(pages: Pages) -> None:
    """The run of a model tells its steps and why it failed."""
    pages.check(f"runs/flow-run/{pages.runs['fits']}", "fleet: specs", "validate: done in", "publish: done in")
    pages.check(f"runs/flow-run/{pages.runs['ajar']}", "fleet: specs", "fetch: done in", f"Next: {_NEXT}", "Failed")
    assert "prefect/flow_engine.py" not in pages.text


def test_artifact_list_tells_results(pages: Pages) -> None:
    """The list of artifacts tells what came of each model."""
    outcomes = (f"{FITS}: published version 1", f"{AJAR}: {FAILED}")
    pages.check("artifacts", "outcome-fits-local-cpu", "2 models: 1 published, 1 failed", "Gate passed", *outcomes)


def test_fleet_tables_link_model_runs(pages: Pages) -> None:
    """The tables of a fleet lead to the runs of its models."""
    pages.check(f"artifacts/artifact/{pages.artifacts['fleet-plan']}", "fits", "stale", "there is no version of it yet")
    pages.check(f"artifacts/artifact/{pages.artifacts['fleet-summary']}", "published version 1", FAILED, _WHY)
    links = "[...document.querySelectorAll('td a, [role=cell] a')].map(link => [link.innerText, link.href])"
    runs = {name: f"{pages.address}/runs/flow-run/{run}" for name, run in pages.runs.items()}
    assert dict(pages.chromium.evaluate(links)) == runs


def test_model_artifacts_are_listed(pages: Pages) -> None:
    """The artifacts of a model are its steps, its judgement and its release."""
    steps = ("The steps of fits for local-cpu, of which 0 of 7 are cached", "validate", "would run")
    pages.check(f"artifacts/artifact/{pages.artifacts['plan-fits-local-cpu']}", *steps)
    pages.check(f"artifacts/artifact/{pages.artifacts['validation-fits-local-cpu']}", "Gate passed", "cosine", "passed")
    pages.check(f"artifacts/artifact/{pages.artifacts['release-fits-local-cpu']}", "fits version 1", "The report of")


def _parent(prefect: PrefectServer, run: str) -> str:
    """The run that started a run."""
    (flow_run,) = prefect.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    (task,) = prefect.ask("task_runs/filter", task_runs={"id": {"any_": [flow_run["parent_task_run_id"]]}})
    return str(task["flow_run_id"])
