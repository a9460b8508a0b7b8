"""A running server takes up scripts with the models that they ask, lets go of those, and loses no request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.errors import ServedCheckError
from plansmith.records.validation import ServedReport
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton, ServerGroup
from plansmith.triton.server.runtime import ServingRuntime
from plansmith.triton.server.served_check import RawQuestion, RawQuestions, check_served
from plansmith.triton.server.server import TritonServer

from ..support.triton.clients import Clients
from ..support.triton.followed import Followed
from ..support.triton.pipelines import publish_pipeline
from ..support.triton.scripted import SCRIPT, publish_scripted, write_scripted
from ..support.triton.versions import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scripts")]

Arrays = Mapping[str, NDArray[Any]]

BROKEN = "raise RuntimeError('there are no words')"
SLOW = """
import time

def answer(inputs, models):
    time.sleep(3)
    return models["main"](x=inputs["x"])
"""
_GONE_SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def repository(folder: Path) -> ModelRepository:
    """A repository with version 1 of a script."""
    opened = ModelRepository(folder / "repository")
    publish_scripted(opened, folder)
    return opened


@pytest.fixture(scope="module")
def server(repository: ModelRepository, installation: Installation) -> Iterator[TritonServer]:
    """A server that has loaded version 1."""
    log = repository.root.with_suffix(".log")
    with TritonServer(repository.root, installation, log, models=[], exit_on_error=False) as server:
        assert triton_of(server).load(repository.root / MODEL, version=1) == [1]
        yield server


def triton_of(server: TritonServer) -> RunningTriton:
    """The server, to be told and asked."""
    return RunningTriton(f"grpc://{server.grpc_url}", load_seconds=60)


def serving(server: TritonServer, model: str = MODEL) -> set[str]:
    """The parts of a script that answer requests."""
    return _parts_of(triton_of(server), model)


def parts(repository: ModelRepository, version: int | None = None) -> set[str]:
    """The names of the parts of a version, the one that is shown unless another is asked for."""
    version = version or repository.views(MODEL).shown()[-1]
    return {member.model for member in repository.manifest(MODEL, version).package.members}


def server_group(server: TritonServer) -> ServerGroup:
    """The server, as publications tell it."""
    return ServerGroup([f"grpc://{server.grpc_url}"], load_seconds=60)


def test_publications_lose_no_request(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """Publications lose no request, whether parts are shared or not, and old parts go."""
    with Clients(server.http_url, server.grpc_url) as clients:
        clients.wait_for(1)
        for salt in ("", "another", "another", "a third"):
            number = publish_scripted(repository, folder, servers=server_group(server), salt=salt).version
            clients.wait_for(number)
            assert serving(server) == parts(repository)
        for _ in range(2):
            repository.withdraw(MODEL, number, "going back")
            number = repository.views(MODEL).shown()[-1]
            assert triton_of(server).load(repository.root / MODEL, version=number) == [number]
            clients.wait_for(number)
            assert serving(server) == parts(repository)
    assert clients.lost == clients.mixed == []
    assert triton_of(server).ready(MODEL) == [number]


def test_running_request_keeps_version_parts(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A request under way is answered by the parts of the version that it came to."""
    waiting = (
        "import time\n\ndef answer(inputs, models):\n    time.sleep(3)\n    return models['main'](x=inputs['x'])\n"
    )
    old = publish_scripted(repository, folder, servers=server_group(server), script=waiting, salt="slow").version
    answers: list[int] = []
    client = threading.Thread(target=lambda: answers.append(_ask_number(server)))
    client.start()
    time.sleep(1)
    new = publish_scripted(repository, folder, servers=server_group(server), salt="quick").version
    assert not parts(repository, old) & parts(repository, new)
    client.join()
    assert (answers, _ask_number(server)) == ([old], new)
    assert serving(server) == parts(repository)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"initialize": BROKEN}, "there are no words"),
        ({"script": "import nowhere"}, "script.py cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_failed_version_keeps_script_serving(
    options: dict[str, str], reason: str, repository: ModelRepository, server: TritonServer, folder: Path
) -> None:
    """A version that does not load leaves the script and its parts serving, and nothing behind."""
    before, names = repository.views(MODEL).shown(), serving(server)
    with Clients(server.http_url, server.grpc_url, count=2) as clients:
        clients.wait_for(before[-1])
        with pytest.raises(ServedCheckError, match=reason):
            publish_scripted(repository, folder, servers=server_group(server), salt=reason, **options)
    assert clients.lost == clients.mixed == []
    assert (repository.views(MODEL).shown(), triton_of(server).ready(MODEL)) == (before, before)
    assert serving(server) == names == parts(repository)


def test_ensemble_becomes_script_and_back(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """An ensemble may become a script and an ensemble again."""
    number = repository.views(MODEL).shown()[-1]
    with Clients(server.http_url, server.grpc_url, count=4) as clients:
        clients.wait_for(number)
        for publish in (publish_pipeline, publish_scripted, publish_pipeline, publish_scripted):
            number = publish(repository, folder, servers=server_group(server), salt="either").version
            clients.wait_for(number)
            assert (triton_of(server).ready(MODEL), serving(server)) == ([number], parts(repository))
    assert clients.lost == clients.torn == []


def test_failed_script_keeps_ensemble_serving(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A script that does not load in the place of an ensemble leaves that serving."""
    number = publish_pipeline(repository, folder, servers=server_group(server), salt="stays").version
    with Clients(server.http_url, server.grpc_url, count=2) as clients:
        clients.wait_for(number)
        with pytest.raises(ServedCheckError, match="nowhere"):
            publish_scripted(repository, folder, servers=server_group(server), salt="fails", script="import nowhere")
    assert clients.lost == clients.torn == []
    assert (triton_of(server).ready(MODEL), serving(server)) == ([number], parts(repository))


def test_part_of_other_script_stays(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A part that another script asks stays loaded."""
    publish_scripted(repository, folder, servers=server_group(server), salt="for two")
    others = repository.root / "others"
    others.mkdir()
    shown = repository.root / MODEL
    (others / "config.pbtxt").write_text((shown / "config.pbtxt").read_text().replace(f'"{MODEL}"', '"others"'))
    (others / "1").symlink_to(next(shown.glob("[0-9]*")).resolve())
    assert triton_of(server).load(others) == [1]
    earlier_parts = parts(repository)
    publish_scripted(repository, folder, servers=server_group(server), salt="for one")
    assert serving(server) == parts(repository) | earlier_parts
    (others / "config.pbtxt").unlink()
    (others / "1").unlink()
    others.rmdir()
    triton_of(server).unload(others)
    publish_scripted(repository, folder, servers=server_group(server), salt="for none")
    assert serving(server) == parts(repository)


def test_released_script_goes_with_parts(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A script that is let go of goes with its parts."""
    publication = publish_scripted(repository, folder, model="passing")
    assert triton_of(server).load(repository.root / "passing", version=publication.version) == [1]
    assert len(serving(server, "passing")) == 2
    repository.withdraw("passing", 1, "nobody wants it")
    triton_of(server).unload(repository.root / "passing")
    assert (triton_of(server).ready("passing"), serving(server, "passing")) == ([], set())


def test_served_check_loads_script_models(tmp_path: Path, installation: Installation) -> None:
    """The served check loads a script with what it asks, and judges its answers."""
    package = write_scripted(tmp_path / "package", 3).package
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    whole, three = np.full((3, 1), 3, np.int64), np.full((3, 3), 3, np.float32)

    def judge(_: str, expected: Arrays, answer: Arrays) -> list[str]:
        return [name for name, array in expected.items() if not np.array_equal(array, answer[name])]

    def checked(expected: Arrays, *, by_row: bool = True) -> ServedReport:
        return check_served(
            *(package, tmp_path / "package", []),
            runtime=ServingRuntime(installation, None, "Python", "cpu"),
            mask_input=None,
            tolerances={},
            scratch=tmp_path / "scratch",
            log=tmp_path / "log",
            progress=lambda _: None,
            raw=[RawQuestions([RawQuestion("three rows", {"x": x}, expected)], judge, by_row=by_row)],
        )

    report = checked({"whole": whole, "three": three})
    assert {(check.protocol, check.batch) for check in report.checks} == {
        ("http", 3),
        ("grpc", 3),
        ("http", 1),
        ("grpc", 1),
    }
    report = checked({"whole": whole, "three": three}, by_row=False)
    assert [(check.protocol, check.batch) for check in report.checks] == [("http", 3), ("grpc", 3)]
    with pytest.raises(ServedCheckError, match="answer over http to three rows is wrong: whole"):
        checked({"whole": whole + 1, "three": three})


def test_script_server_has_asked_models(tmp_path: Path, installation: Installation) -> None:
    """A server that is started with a script has the models that it asks."""
    repository = ModelRepository(tmp_path / "repository")
    publish_scripted(repository, tmp_path)
    with TritonServer(repository.root, installation, tmp_path / "log", models=[MODEL]) as server:
        assert _ask_number(server) == 1
        assert serving(server) == parts(repository)


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_remote_server_told_script_models(way: str, tmp_path: Path, installation: Installation) -> None:
    """A server whose repository is not seen from here is told of what a script asks."""
    repository = ModelRepository(tmp_path / "repository")
    publish_scripted(repository, tmp_path)
    unseen = tmp_path / "elsewhere" / MODEL
    with TritonServer(repository.root, installation, tmp_path / "log", models=[], exit_on_error=False) as server:
        triton = RunningTriton(f"{way}://{getattr(server, f'{way}_url')}", load_seconds=60)
        assert triton.load(unseen, version=1) == [1]
        with Clients(server.http_url, server.grpc_url, count=4) as clients:
            clients.wait_for(1)
            publish_scripted(repository, tmp_path)
            assert triton.load(unseen, version=2) == [2]
            clients.wait_for(2)
            publish_scripted(repository, tmp_path, script="import nowhere")
            with pytest.raises(ServedCheckError, match="nowhere"):
                triton.load(unseen, version=3)
        assert clients.lost == clients.mixed == []
        assert parts(repository, 2) <= serving(server)
        assert not serving(server) & (parts(repository, 3) - parts(repository, 2))


def test_following_server_loads_and_drops_scripts(tmp_path: Path, installation: Installation) -> None:
    """A server that follows takes scripts up, and lets go of them with their parts."""
    del installation
    repository = ModelRepository(tmp_path / "repository")
    publish_scripted(repository, tmp_path)
    with Followed(repository.root) as followed:
        followed.wait_for_models(MODEL)
        assert not any(line.startswith(f"{MODEL}.") for line in followed.lines), "parts are no models of their own"
        publish_scripted(repository, tmp_path, script=f"{SCRIPT}# another one\n")
        followed.line(f"{MODEL}: version 2 serves, and no longer version 1")
        assert _parts_of(followed.triton) == parts(repository)
        for number in (2, 1):
            repository.withdraw(MODEL, number, "nobody wants it")
        followed.line(f"{MODEL}: not shown any more, unloaded")
        deadline = time.monotonic() + _GONE_SECONDS
        while _parts_of(followed.triton) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _parts_of(followed.triton) == set()


def _ask_number(server: TritonServer) -> int:
    """The number that one answer tells."""
    from tritonclient import grpc

    tensor = grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
    with grpc.InferenceServerClient(server.grpc_url) as client:
        return int(client.infer(MODEL, [tensor]).as_numpy("whole")[0, 0])


def _parts_of(triton: RunningTriton, model: str = MODEL) -> set[str]:
    rows = triton.index()
    return {row["name"] for row in rows if row["state"] == "READY" and row["name"].startswith(f"{model}.")}
