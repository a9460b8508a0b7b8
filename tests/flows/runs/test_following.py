"""How runs are followed and what their ends are to the user, where no server is needed to tell."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import Log
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema

from plansmith.config.spec import ModelSpec, make_spec
from plansmith.errors import EnvironmentFault, GateError, PlansmithError, UsageError
from plansmith.fleet.records import ModelOutcome, failure_of
from plansmith.flows.compile_model import compile_model
from plansmith.flows.deploy.deployments import ONE_MODEL
from plansmith.flows.prefect_api.run_log import LogReader, text_of
from plansmith.flows.runs import following
from plansmith.flows.runs.following import Watcher
from plansmith.flows.runs.submitting import RunEnded, SubmittedRun, WantedCompile, check_parameters

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
RUN = SubmittedRun(uuid4(), "minilm for local-cpu", "http://prefect/runs/1")
SPEC = {
    "source": "hf:org/minilm",
    "shapes": {"input_ids": "1x1:8x64:32x256"},
    "precision": "auto",
    "data": {"path": "/srv/sentences.txt"},
    "publish": ["s3://models/prod", "/srv/store"],
    "tolerances": {"logits": {"max_relative": 0.1}},
    "triton": {"instance_group": [{"count": 2}]},
    "tensorrt": {"gpus": ["L4"]},
}


class StoredLog:
    """The lines of a run as Prefect's API gives them: by time, from a moment on, so many at once."""

    def __init__(self, limit: int) -> None:
        self.lines: list[Log] = []
        self.limit = limit
        self.request_count = 0

    def add(self, text: str, seconds: float) -> None:
        moment: Any = BEGAN + timedelta(seconds=seconds)  # Prefect has a class of its own for what is a datetime
        self.lines.append(Log(id=uuid4(), name="prefect.flow_runs", level=20, message=text, timestamp=moment))

    def read(self, after: datetime | None, offset: int) -> list[Log]:
        self.request_count += 1
        matches = [line for line in self.lines if after is None or line.timestamp >= after]
        return sorted(matches, key=lambda line: line.timestamp)[offset : offset + self.limit]


def _texts(lines: list[Log]) -> list[str]:
    return [line.message for line in lines]


@pytest.mark.parametrize("limit", [1, 3, 200])
def test_long_log_read_in_order(limit: int) -> None:
    """A log of many pages is read once and in order."""
    stored = StoredLog(limit)
    # Seven lines share each moment: more than a page of three holds.
    for number in range(50):
        stored.add(f"line {number:03}", number // 7)
    reader = LogReader(stored.read, limit)
    assert _texts(reader.read_new()) == [f"line {number:03}" for number in range(50)]
    assert reader.read_new() == []
    stored.add("one more", 7)
    assert _texts(reader.read_new()) == ["one more"]


def test_late_line_read_once() -> None:
    """A line that comes late is read once too."""
    stored, reader = StoredLog(4), None
    reader = LogReader(stored.read, stored.limit)
    lines: list[str] = []
    expected = [f"line {number}" for number in range(300)]
    chance = random.Random(1)
    waiting = list(enumerate(expected))
    while waiting:
        for _ in range(min(5, len(waiting))):
            number, text = waiting.pop(chance.randrange(min(20, len(waiting))))
            stored.add(text, number / 10)
        lines += _texts(reader.read_new())
    assert sorted(lines) == sorted(expected)


def test_quiet_log_asked_once() -> None:
    """A log in which nothing is new is asked for once."""
    stored = StoredLog(200)
    for number in range(500):
        stored.add(str(number), number)
    reader = LogReader(stored.read, stored.limit)
    assert len(reader.read_new()) == 500
    before = stored.request_count
    assert reader.read_new() == []
    assert stored.request_count == before + 1


def test_vanishing_api_loses_no_line() -> None:
    """An API that goes away between two pages loses no line."""
    stored = StoredLog(10)
    for number in range(35):
        stored.add(str(number), number)
    faults = [None, None, httpx.ReadError("reset")]

    def read(after: datetime | None, offset: int) -> list[Log]:
        fault = faults.pop(0) if faults else None
        if fault is not None:
            raise fault
        return stored.read(after, offset)

    reader = LogReader(read, stored.limit)
    with pytest.raises(httpx.ReadError):
        reader.read_new()
    assert _texts(reader.read_new()) == [str(number) for number in range(35)]


def test_line_told_without_traceback() -> None:
    """A line is told without its traceback."""
    stored = StoredLog(1)
    stored.add("it failed: GateError('no')\nTraceback (most recent call last):\n  File 'x'", 0)
    assert text_of(stored.lines[0]) == "it failed: GateError('no')"


def _outcome(error: PlansmithError | None, ended: Any = "failed") -> ModelOutcome:
    failure = None if error is None else failure_of(error)
    return ModelOutcome(
        model="minilm", target="local-cpu", file="", ended=ended, version=3, failure=failure, seconds=2.5
    )


def test_failed_run_ends_with_failure() -> None:
    """A run that failed ends with the failure that it left."""
    error = GateError("it differs", remedy="allow more", step="validate")
    ended = RunEnded(RUN, "FAILED", "Flow run encountered an exception", _outcome(error))
    assert isinstance(ended.error, GateError)
    assert str(ended.error) == "minilm · validate: it differs\nNext: allow more"
    assert (ended.exit_code, ended.summary) == (5, "failed at validate, exit code 5")
    document = json.loads(json.dumps(ended.document()))
    assert (document["id"], document["state"], document["exit_code"]) == (str(RUN.id), "FAILED", 5)
    assert document["error"]["remedy"] == "allow more"


@pytest.mark.parametrize(
    ("state", "message", "says"),
    [
        ("CRASHED", "no heartbeat for 90 s", ("its run crashed: no heartbeat for 90 s", "submit it again")),
        ("FAILED", "Validation of flow parameters failed", ("before the compile began: Validation", RUN.address)),
        ("DELETED", "", ("was deleted", "submit it again")),
    ],
)
def test_silent_run_quotes_prefect(state: str, message: str, says: tuple[str, ...]) -> None:
    """A run that left nothing ends with what Prefect says of it."""
    ended = RunEnded(RUN, state, message)
    assert ended.exit_code == 9
    assert ended.error is not None
    assert ended.error.remedy
    assert not [fragment for fragment in says if fragment not in str(ended.error)], str(ended.error)


@pytest.mark.parametrize(
    ("state", "ended", "words", "code"),
    [
        ("COMPLETED", "published", "published, version 3, in 2.5 s", 0),
        ("COMPLETED", "unchanged", "unchanged, still version 3, in 2.5 s", 0),
        ("CANCELLED", "interrupted", "cancelled", 130),
    ],
)
def test_unfailed_run_told_briefly(state: str, ended: str, words: str, code: int) -> None:
    """A run that did not fail is told in a few words."""
    result = RunEnded(RUN, state, "", _outcome(None, ended))
    assert (result.error, result.summary, result.exit_code) == (None, words, code)


def _make_compile(**more: Any) -> WantedCompile:
    return WantedCompile("minilm", "local-cpu", make_spec({**SPEC, **more}), Path("/srv/specs"))


@cache
def _schema() -> dict[str, Any]:
    return parameter_schema(compile_model).model_dump_for_openapi()


def _deployment(**changes: Any) -> Any:
    schema = deepcopy(_schema())
    for name, value in changes.items():
        schema["definitions"]["ModelSpec"][name] = value
    return SimpleNamespace(name="gpu-l4", parameter_openapi_schema=schema)


def test_sent_spec_reads_back_same() -> None:
    """What is sent is what was said, and it reads back as the same spec."""
    request = _make_compile()
    check_parameters(request, _deployment())
    sent = json.loads(json.dumps(request.parameters))
    assert ModelSpec.model_validate(sent["spec"]) == request.spec
    assert set(sent["spec"]) == set(SPEC)
    assert sent["folder"] == "/srv/specs"
    assert compile_model.name == ONE_MODEL


def test_spec_unknown_to_deployment_refused() -> None:
    """A spec that an older deployment does not know is refused here."""
    fields = dict(_deployment().parameter_openapi_schema["definitions"]["ModelSpec"]["properties"])
    del fields["tensorrt"]
    with pytest.raises(UsageError, match=r"minilm: the deployment compile-model/gpu-l4 does not take") as caught:
        check_parameters(_make_compile(), _deployment(properties=fields))
    assert "spec: Additional properties are not allowed ('tensorrt' was unexpected)" in str(caught.value)
    assert "plansmith flows deploy" in caught.value.remedy


def test_unknown_parameter_refused() -> None:
    """A parameter that the flow does not have is refused here."""
    deployment = _deployment()
    del deployment.parameter_openapi_schema["properties"]["folder"]
    with pytest.raises(UsageError, match="'folder' is no parameter of this flow, which has directory, spec"):
        check_parameters(_make_compile(), deployment)


def test_refused_value_told_briefly() -> None:
    """A value that the schema refuses is told in one short line."""
    with pytest.raises(UsageError) as caught:
        check_parameters(_make_compile(source="hf:~/" + "a" * 3000), _deployment())
    assert "spec.source: 'hf:~/aaa" in str(caught.value)
    assert "does not match" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_oversized_spec_refused() -> None:
    """A spec beyond what a server takes is refused in words."""
    many = {f"output_{number}": {"max_relative": 0.1} for number in range(20_000)}
    with pytest.raises(UsageError, match=r"as JSON, and a Prefect server takes 512\.0 KiB") as caught:
        check_parameters(_make_compile(tolerances=many), _deployment())
    assert caught.value.remedy


class Notes(Watcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def _status(code: int) -> PrefectHTTPStatusError:
    request = httpx.Request("GET", "http://prefect/api/x")
    return PrefectHTTPStatusError("no", request=request, response=httpx.Response(code, request=request, text="no"))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception]]:
    """Faults of an API, in their turn; it is asked for nothing else."""
    faults: list[Exception] = []

    def ask(*_: Any) -> Any:
        raise faults.pop(0) if len(faults) > 1 else faults[0]

    monkeypatch.setattr(following, "page_limit", lambda _: 200)
    monkeypatch.setattr(following, "_look", ask)
    with temporary_settings({PREFECT_API_URL: "http://prefect/api"}):
        yield faults


def test_absent_api_leaves_run(api: list[Exception]) -> None:
    """An API that stays away is given up, and the run goes on."""
    api.append(httpx.ConnectError("refused"))
    watcher = Notes()
    with pytest.raises(EnvironmentFault, match=r"was away for 0 s: refused; the run goes on") as caught:
        following.follow("http://prefect/api", [RUN], watcher, following.Pace(away=0.05, pause=0.01))
    assert caught.value.remedy == f"plansmith submit --follow {RUN.id}"
    assert len(watcher.notices) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_refusing_api_ends_following(api: list[Exception], code: int) -> None:
    """An API that no longer lets us in ends the following."""
    api += [httpx.ReadTimeout("slow"), _status(503), _status(code)]
    watcher = Notes()
    with pytest.raises(EnvironmentFault, match="does not let us in; the run goes on") as caught:
        following.follow("http://prefect/api", [RUN], watcher, following.Pace(pause=0.01))
    assert "PREFECT_API_AUTH_STRING" in caught.value.remedy
    assert caught.value.remedy.endswith(f"then plansmith submit --follow {RUN.id}")
    assert caught.value.exit_code == 9
