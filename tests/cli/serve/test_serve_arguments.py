"""The server of `plansmith serve` is started with what the shown releases need, and with nothing else."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from plansmith.cli.compile.outcomes import Compiled
from plansmith.cli.serve import serve
from plansmith.config.targets import load_target
from plansmith.errors import EnvironmentFault, ServedCheckError, UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import Precision
from plansmith.records.release import PackedEnvironment
from plansmith.records.validation import ServedReport
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server import installation
from plansmith.triton.server.installation import RUNNING_PYTHON, Installation, find_installation
from plansmith.triton.server.needs import ServerNeeds, obstacles, server_arguments, shown_manifests, stand_in_for
from plansmith.triton.server.server import TritonServer

from ...support.faults.packages import draft_of, publish, write_package
from ...support.report import parts, planned

COMPATIBLE = "--backend-config=tensorrt,version-compatible=true"
PLUGINS = "--backend-config=tensorrt,plugins=liba.so"


STUB = Path("/stubs") / RUNNING_PYTHON / "triton_python_backend_stub"
SERVER = Installation(Path("/tritonserver"), (), Path("/backends"), Path("/caches"), STUB, "2.51.0", False)
STARTED = ServerNeeds(None, None, (), ())


def brought(python: str) -> PackedEnvironment:
    """An environment for a Python."""
    return PackedEnvironment(
        file="env.tar.gz",
        python=python,
        machine="x86_64",
        glibc="2.34",
        bytes=1,
        unpacked_bytes=1,
        distributions=(),
    )


def released(
    root: Path,
    model: str,
    *needs: tuple[str, ...],
    engine: Engine | None = None,
    environment: PackedEnvironment | None = None,
) -> None:
    """Versions of a model that need the server to be started with arguments, with the engine of a draft or another."""
    for number, arguments in enumerate(needs):
        package = write_package(root.parent / f"{model}-{number}", f"{model} {number}")
        draft = draft_of(package, model=model)
        if engine is not None:
            draft = draft.model_copy(update={"engine": engine})
        publish(
            root,
            package,
            draft.model_copy(
                update={
                    "package": draft.package.model_copy(
                        update={"server_arguments": arguments, "environment": environment}
                    )
                }
            ),
        )


def test_needed_arguments_passed_once(tmp_path: Path) -> None:
    """What any shown version needs is passed once."""
    root = tmp_path / "repository"
    released(root, "plain", ())
    released(root, "compatible", (COMPATIBLE,), (COMPATIBLE, PLUGINS), ())
    opened = ModelRepository(root)
    assert server_arguments(shown_manifests(opened, ["plain"])) == []
    assert server_arguments(shown_manifests(opened, ["plain", "compatible"])) == [COMPATIBLE, PLUGINS]


def test_running_server_takes_no_other_target(
    tmp_path: Path,
) -> None:
    """A running server takes no model that needs other arguments or is for another target."""
    root = tmp_path / "repository"
    released(root, "plain", ())
    released(root, "compatible", (COMPATIBLE,))
    opened = ModelRepository(root)
    obstacle = obstacles(SERVER, opened, STARTED)
    assert obstacle("plain") is None
    assert f"started with {COMPATIBLE}" in (obstacle("compatible") or "")
    assert obstacles(SERVER, opened, replace(STARTED, arguments=(COMPATIBLE,)))("compatible") is None
    (opened.store / "repository.json").write_text('{"target": "triton-26.08-cpu"}')
    assert "for target triton-26.08-cpu, and this server was started for local-cpu" in (obstacle("plain") or "")


def test_running_server_lacks_python(
    tmp_path: Path,
) -> None:
    """A running server takes no model whose environment is for a Python it was started without."""
    root = tmp_path / "repository"
    released(root, "own", (), environment=brought(RUNNING_PYTHON))
    released(root, "another", (), environment=brought("3.99"))
    opened = ModelRepository(root)
    obstacle = obstacles(SERVER, opened, STARTED)
    assert obstacle("own") is None
    assert (obstacle("another") or "").startswith("its environment is for Python 3.99, which this server was started")
    assert obstacles(SERVER, opened, replace(STARTED, pythons=("3.99",)))("another") is None
    image = replace(SERVER, stub=SERVER.backends / "python" / "triton_python_backend_stub")
    assert obstacles(image, opened, STARTED)("another") is None


@pytest.mark.parametrize("written", ["8", "8GB", "none", "0G", "-1G"])
def test_wrong_memory_size_refused(written: str) -> None:
    """A value that is no size of memory is refused."""
    with pytest.raises(UsageError, match=re.escape(f"--memory {written!r} is no size")):
        CliRunner().invoke(serve.serve_command, ["--memory", written], catch_exceptions=False)


def test_plans_need_no_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans alone need no ONNX Runtime in the server."""
    monkeypatch.setattr(installation, "has_gpu", lambda: True)
    target = load_target("triton-26.08")
    root = tmp_path / "repository"
    released(root, "plans", (), (), engine=planned.engine())
    released(root, "graph", ())
    (root / "theirs" / "1").mkdir(parents=True)
    opened = ModelRepository(root)
    server = Installation(tmp_path / "tritonserver", (), tmp_path, tmp_path, None, "2.72.0", False, real_tensorrt=True)
    assert stand_in_for(server, target, shown_manifests(opened, ["plans"])) is None
    for others in (["plans", "graph"], ["graph"], ["plans", "theirs"]):
        with pytest.raises(EnvironmentFault, match="the stand-in backend runs models on the CPU only"):
            stand_in_for(server, target, shown_manifests(opened, others))
    with pytest.raises(EnvironmentFault, match="has no TensorRT backend"):
        stand_in_for(replace(server, real_tensorrt=False), target, shown_manifests(opened, ["plans"]))


def test_foreign_model_needs_nothing(tmp_path: Path) -> None:
    """A model that somebody else put there needs nothing that is known."""
    (tmp_path / "repository" / "theirs" / "1").mkdir(parents=True)
    assert server_arguments(shown_manifests(ModelRepository(tmp_path / "repository"), ["theirs"])) == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("local-cpu", f"  the server has to be started with {COMPATIBLE} {PLUGINS}\n"),
        (
            "sagemaker-26.05",
            f"  the server has to be started with SAGEMAKER_TRITON_ADDITIONAL_ARGS='{COMPATIBLE} {PLUGINS}'\n",
        ),
    ],
)
def test_compile_says_server_needs(target: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compile says what the server needs."""
    released(tmp_path / "repository", "compatible", (COMPATIBLE, PLUGINS))
    opened = ModelRepository(tmp_path / "repository")
    manifest = opened.manifest("compatible", 1)
    published = opened.published(manifest, unchanged=False)
    outcome = Compiled(published, manifest.model_copy(update={"target": target}), [])
    outcome.show()
    assert said in capsys.readouterr().out
    assert outcome.document()["server_arguments"] == [COMPATIBLE, PLUGINS]


@pytest.mark.parametrize(
    ("engine", "backend"), [(planned.engine(), "TensorRT"), (parts.engine_of(Precision.FP32), "ONNX Runtime")]
)
def test_compile_says_serving_backend(
    engine: Engine, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compile says which backend served the release."""
    released(tmp_path / "repository", "compatible", ())
    opened = ModelRepository(tmp_path / "repository")
    manifest = opened.manifest("compatible", 1)
    served = ServedReport(
        server_version="2.72.0",
        backend="real",
        backend_runtime="that of Triton 2.72.0",
        requests=6,
        concurrent_clients=4,
        median_seconds=0.01,
        worst_seconds=0.02,
        checks=(),
        completed={},
    )
    updated = manifest.model_copy(update={"engine": engine, "served": served})
    Compiled(opened.published(manifest, unchanged=False), updated, []).show()
    assert f"served by Triton 2.72.0 with its own {backend} backend: 6 requests" in capsys.readouterr().out


@pytest.mark.slow
def test_real_triton_gets_arguments(tmp_path: Path) -> None:
    """A real Triton gets the arguments."""
    try:
        installation = find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    (tmp_path / "models").mkdir()
    with TritonServer(
        tmp_path / "models", installation, tmp_path / "log", models=[], arguments=[COMPATIBLE, PLUGINS]
    ) as server:
        assert server.version
    wrong = TritonServer(tmp_path / "models", installation, tmp_path / "log", models=[], arguments=["--of-no-server"])
    with pytest.raises(ServedCheckError, match="ended with status"), wrong:
        pytest.fail("this server must not start")
    assert "of-no-server" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_repository_followed_without_loaded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository here is followed though a model never loads, and the log before is kept."""
    try:
        find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    endless = tmp_path / "models" / "endless"  # a Python model without its model.py loads for ever
    (endless / "1").mkdir(parents=True)
    (endless / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 1\n')
    (tmp_path / "models.serve.log").write_text("why the server before ended")
    monkeypatch.chdir(tmp_path / "models")
    monkeypatch.setattr(serve, "_LOAD_SECONDS", 10)
    monkeypatch.setattr(serve, "_follow", _interrupted)
    ports = [word for kind in ("http", "grpc", "metrics") for word in (f"--{kind}-port", "0")]
    answer = CliRunner().invoke(serve.serve_command, ["--repository", ".", "--follow", *ports])
    assert (answer.exit_code, answer.exception) == (0, None)
    assert f"follows {tmp_path / 'models'}" in answer.output
    assert f"log      {tmp_path / 'models.serve.log'}" in answer.output
    assert (tmp_path / "models.serve.log.1").read_text() == "why the server before ended"
    assert "tritonserver" in (tmp_path / "models.serve.log").read_text()


def test_unkept_log_leaves_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be kept leaves the new one to the temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "models.serve.log").touch()
    (tmp_path / "models.serve.log.1" / "full").mkdir(parents=True)
    log = serve.log_file(tmp_path / "models")
    assert (log.parent, log.name.startswith("plansmith-")) == (tmp_path, True)


def _interrupted(*_: object) -> int:
    """As a person who presses Ctrl-C."""
    raise KeyboardInterrupt
