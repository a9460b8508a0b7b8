"""A running Triton finds the packages of Python models in their archives: for its own Python, and for another one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tritonclient import grpc
from tritonclient.grpc import model_config_pb2 as pb

from plansmith.compilers.python_backend.environment.wheels import Platform, installed_versions, read_requirements
from plansmith.errors import EnvironmentFault
from plansmith.steps.release.environment import WantedEnvironment, add_environment, place_environment
from plansmith.steps.runner import Listener, StageRunner
from plansmith.triton.config.model_config import text_of
from plansmith.triton.server.installation import RUNNING_PYTHON, Installation, find_installation
from plansmith.triton.server.server import TritonServer, lent_python, other_pythons

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("environments")]

REQUIREMENTS = "numpy==1.26.4\ntokenizers\n"
INSTANCES = 3
TEXTS = ["one fish two", "", "red fish 🐟"]

MODEL = """
import json
import sys
from pathlib import Path

import numpy as np
import tokenizers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(Path(__file__).parent / "tokenizer.json"))

    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.tensors(request)) for request in requests]

    def tensors(self, request):
        texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "text").as_numpy()]
        ids = [one.ids for one in self.tokenizer.encode_batch(texts)]
        told = {
            "python": "%d.%d" % sys.version_info[:2],
            "numpy": np.__version__,
            "places": [np.__file__, tokenizers.__file__],
            "path": sys.path,
        }
        said = [json.dumps(value).encode() for value in (told, ids)]
        return [pb_utils.Tensor("said", np.array(said, dtype=object))]
"""


@pytest.fixture(scope="module")
def installation() -> Installation:
    try:
        candidate = find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    if not candidate.lends_python:
        pytest.skip("this server has one Python alone")
    return candidate


@pytest.fixture
def _all_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other Pythons that lie beside the running one are on PATH, after it."""
    beside = [str(folder) for folder in sorted(Path(sys.base_prefix).parent.glob("3.*/bin"))]
    monkeypatch.setenv("PATH", ":".join([f"{sys.base_prefix}/bin", *beside, os.environ["PATH"]]))


def tokenizer() -> Tokenizer:
    word_tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2, "red": 3, "fish": 4}, "[UNK]"))
    word_tokenizer.pre_tokenizer = Whitespace()
    return word_tokenizer


def write_model(repository: Path, python: str, artifacts: Path) -> Path:
    """A model that brings its environment for a Python; the model's folder."""
    model = repository / "reader"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    tokenizer().save(str(model / "1" / "tokenizer.json"))
    config = pb.ModelConfig(name="reader", backend="python")
    config.input.add(name="text", data_type="TYPE_STRING", dims=[-1])
    config.output.add(name="said", data_type="TYPE_STRING", dims=[2])
    config.instance_group.add(kind="KIND_CPU", count=INSTANCES)
    add_environment(config)
    (model / "config.pbtxt").write_text(text_of(config))
    requirements, platform = read_requirements(REQUIREMENTS), Platform(python, "x86_64")
    stages = StageRunner("reader", artifacts, listener=Listener(), force=False, dry=False)
    environment = WantedEnvironment(requirements, platform, installed_versions(requirements, platform))
    place_environment(environment.pack(stages), model)
    stages.close()
    return model


def environment_of(python: str, folder: Path) -> Path:
    """What a virtual environment of a Python looks like."""
    (folder / "environment" / "lib" / f"python{python}").mkdir(parents=True)
    return folder / "environment"


def ask(server: TritonServer) -> list[str]:
    with grpc.InferenceServerClient(server.grpc_url) as client:
        texts = grpc.InferInput("text", [len(TEXTS)], "BYTES")
        texts.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
        answer = client.infer("reader", [texts]).as_numpy("said")
    assert answer is not None
    return [value.decode() for value in answer]


@pytest.mark.usefixtures("_all_pythons")
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_model_uses_archive_packages_only(
    python: str, installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model works with the packages of its archive and with no others."""
    try:
        lent = lent_python(installation, python)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    assert (lent is None) == (python == RUNNING_PYTHON)
    model = write_model(tmp_path / "repository", python, tmp_path / "artifacts")
    files = sorted(model.iterdir())
    others = other_pythons(installation)  # the environment that plansmith runs in may be for one of them
    monkeypatch.setenv("VIRTUAL_ENV", str(environment_of(others[-1] if others else python, tmp_path)))
    with TritonServer(model.parent, installation, tmp_path / "log", pythons=[*others, python]) as server:
        assert sorted(model.iterdir()) == files
        report, ids = map(json.loads, ask(server))
    assert ids == [encoding.ids for encoding in tokenizer().encode_batch(TEXTS)]
    assert (report["python"], report["numpy"]) == (python, "1.26.4")
    sites = [place for place in report["path"] if "packages" in place]
    assert len(sites) == 1
    assert sites[0].endswith(f"/lib/python{python}/site-packages")
    assert all(place.startswith(f"{sites[0]}/") for place in report["places"])
    assert "/python_env_" in sites[0]


def test_killed_server_leaves_no_environment(installation: Installation, tmp_path: Path) -> None:
    """A server that was ended by force leaves no environment behind."""
    model = write_model(tmp_path / "repository", RUNNING_PYTHON, tmp_path / "artifacts")
    with TritonServer(model.parent, installation, tmp_path / "log") as server:
        unpacked = Path(json.loads(ask(server)[0])["places"][0].partition("/lib/")[0])
        assert (unpacked / "pyvenv.cfg").is_file()
        (child,) = (process for process in psutil.Process().children() if process.name() == "tritonserver")
        child.kill()
    assert not unpacked.parent.exists()


@pytest.mark.usefixtures("_all_pythons")
def test_foreign_python_environment_not_loaded(installation: Installation, tmp_path: Path) -> None:
    """An environment of another Python without its process does not load and says what it lacks."""
    python = "3.12" if RUNNING_PYTHON != "3.12" else "3.11"
    model = write_model(tmp_path / "repository", python, tmp_path / "artifacts")
    with TritonServer(model.parent, installation, tmp_path / "log", exit_on_error=False) as server:
        with grpc.InferenceServerClient(server.grpc_url) as client:
            (entry,) = client.get_model_repository_index(as_json=True)["models"]
        assert "No module named 'numpy'" in entry["reason"]


def test_missing_python_says_remedy(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without the Python of an environment says what to do."""
    python = "3.12" if RUNNING_PYTHON != "3.12" else "3.11"
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(EnvironmentFault, match=rf"no program python{python} of this machine answers") as missing,
        TritonServer(tmp_path, installation, tmp_path / "log", pythons=[python]),
    ):
        pytest.fail("this server must not start")
    assert "--no-check-served" in missing.value.remedy
    assert other_pythons(installation) == []
    with pytest.raises(EnvironmentFault, match="has no Python backend for it"):
        lent_python(installation, "3.99")
    assert lent_python(installation, RUNNING_PYTHON) is None
    assert list(tmp_path.iterdir()) == []
