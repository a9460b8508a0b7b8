"""Steps that are a part of another one: what is told of them, and what the compile keeps of them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from plansmith.errors import GateError
from plansmith.records.model import Isolation, Record
from plansmith.records.release import StepRecord
from plansmith.steps.runner import Listener, StageRunner


class Heard(Listener):
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []

    def progress(self, step: str, text: str) -> None:
        self.lines.append(("progress", step, text))

    def moving(self, step: str, text: str, share: float) -> None:
        self.lines.append(("moving", step, text, str(share)))

    def waiting(self, step: str, text: str) -> None:
        self.lines.append(("waiting", step, text))

    def result(self, record: Record) -> None:
        self.lines.append(("made", type(record).__name__))

    def finished(self, record: StepRecord) -> None:
        self.lines.append(("finished", record.name))

    def notice(self, text: str) -> None:
        self.lines.append(("notice", text))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def stages(tmp_path: Path, heard: Heard) -> StageRunner:
    return StageRunner("reader", tmp_path, listener=heard, force=False, dry=False)


def make(stages: StageRunner, step: str) -> None:
    """Do a step that makes a record and says so."""

    def build(out: Path) -> StepRecord:
        stages.progress("asking")
        stages.progress("sending", 0.5)
        stages.notice("it is slow")
        stages.waits_for_gpu(None)
        return StepRecord(name=out.name, seconds=0, cached=False)

    stages.stage(step, StepRecord, [], {}, build)


def test_neighbour_steps_told_as_part(stages: StageRunner, heard: Heard) -> None:
    """Steps of a model beside are told as a part of the one step with its name."""
    with stages.timed("beside topics"), stages.nested("topics"):
        make(stages, "export")
    assert heard.lines == [
        ("progress", "beside topics", ""),
        ("progress", "beside topics", "export"),
        ("progress", "beside topics", "export"),
        ("progress", "beside topics", "export, asking"),
        ("moving", "beside topics", "export, sending", "0.5"),
        ("notice", "topics: it is slow"),
        ("waiting", "beside topics", "export, waiting for another plansmith that builds on this GPU"),
        ("finished", "beside topics"),
    ]


def test_lone_side_steps_keep_names(stages: StageRunner, heard: Heard) -> None:
    """Steps aside of no other model are told by their own names."""
    with stages.timed("validate"), stages.nested():
        make(stages, "lower")
    assert ("progress", "lower", "asking") in heard.lines
    assert ("notice", "it is slow") in heard.lines
    assert not [line for line in heard.lines if line[0] == "made"]


def test_side_products_not_the_compile(stages: StageRunner) -> None:
    """What steps aside make is not the compile's own."""
    make(stages, "export")
    records, outcomes = list(stages.records), dict(stages.results)
    with stages.timed("beside"):
        with stages.nested("topics"):
            make(stages, "lower")
            make(stages, "export")
            assert [record.name for record in stages.records] == ["export", "lower", "export"]
        assert (stages.records, stages.results, stages.step) == (records, outcomes, "beside")
    assert [record.name for record in stages.records] == ["export", "beside"]


def test_side_error_names_model_and_step(stages: StageRunner, heard: Heard) -> None:
    """An error aside names the model and the step that failed, and later ones the compile."""
    with pytest.raises(GateError) as failed, stages.timed("beside"), stages.nested("topics"), stages.timed("validate"):
        raise GateError("it differs")
    assert (failed.value.model, failed.value.step) == ("reader, topics beside it", "validate")
    assert str(failed.value).startswith("reader, topics beside it · validate: it differs")
    with pytest.raises(GateError) as failed, stages.timed("package"):
        raise GateError("it differs")
    assert (failed.value.model, failed.value.step) == ("reader", "package")
    stages.notice("from here on as before")
    assert heard.lines[-1] == ("notice", "from here on as before")


def test_missing_isolation_is_told_once(stages: StageRunner, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the kernel allows no isolation is told once in a run, however many tasks run without it."""
    isolation = Isolation(complete=False, problem="not permitted")
    task = Mock(run=Mock(return_value=Mock(isolation=isolation)))
    monkeypatch.setattr("plansmith.steps.runner.Worker", Mock(return_value=Mock(is_dead=False)))
    for _ in range(3):
        stages.run_in_worker(task, isolation)
    assert heard.lines == [("notice", "code that is not plansmith's ran with network and credentials: not permitted")]
