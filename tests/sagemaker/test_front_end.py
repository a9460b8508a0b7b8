"""The real front end of SageMaker loads, answers, lists and unloads what `package` makes, by its own error codes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.sagemaker.archives import plan_archives
from plansmith.sagemaker.selection import PackageRequest
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation

from ..support.sagemaker.front_end import (
    BODY,
    START_SECONDS,
    TARGET_HEADER,
    FrontEnd,
    front_end,
    number_in,
    unpacked_archives,
)
from ..support.sagemaker.releases import publish_ensemble, publish_onnx, publish_python
from ..support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("sagemaker")]

BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
LIVE = {"SAGEMAKER_TRITON_PING_MODE": "live"}
"""What `package` says to set at a multi-model endpoint."""

MODELS = ("tiny", "whole", "heavy", "heavier", "broken")
HEAVY = f"""
import os, sys
sys.path[:0] = os.environ[{SITE_VARIABLE!r}].split(":")
import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, arguments):
        {{initialize}}

    def execute(self, requests):
        error = triton.TritonError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [triton.InferenceResponse([], error) for _ in requests]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sagemaker")


@pytest.fixture(scope="module")
def repository(folder: Path) -> ModelRepository:
    """Version 3 of a model of ONNX Runtime, an ensemble, and programs that run out of memory or do not load."""
    opened = ModelRepository(folder / "repository")
    for _ in range(3):
        publish_onnx(opened, folder, "tiny")
    publish_ensemble(opened, folder, "whole")
    publish_python(opened, folder, "heavy", HEAVY.format(initialize="pass"))
    publish_python(opened, folder, "heavier", HEAVY.format(initialize="raise MemoryError('out of memory')"))
    publish_python(opened, folder, "broken", HEAVY.format(initialize="raise ValueError('no weights')"))
    return opened


@pytest.fixture(scope="module")
def archives(repository: ModelRepository, folder: Path) -> Iterator[dict[str, Path]]:
    """The unpacked archive of each model for a multi-model endpoint."""
    with unpacked_archives(repository, folder, PackageRequest(MODELS, multi_model=True)) as roots:
        yield {name.partition("-")[0]: root for name, root in roots.items()}


@pytest.fixture(scope="module")
def many(installation: Installation, site: Path, folder: Path) -> Iterator[FrontEnd]:
    """A multi-model endpoint; tests leave no model loaded."""
    with front_end(None, installation, folder / "many.log", LIVE, site) as running:
        yield running


@pytest.fixture
def loaded(many: FrontEnd, archives: dict[str, Path]) -> Iterator[Callable[[str], str]]:
    """Loads a model under its own name; all are unloaded at the end."""
    names: list[str] = []

    def load(model: str) -> str:
        assert many.load(model, archives[model]).status == 200
        names.append(model)
        return model

    yield load
    for name in names:
        assert many.unload(name).status == 200
    assert many.models() == {}


def test_model_loaded_listed_asked_unloaded(many: FrontEnd, archives: dict[str, Path]) -> None:
    """A model is loaded, listed, asked and unloaded."""
    assert many.ask("GET", "/ping").status == 200
    assert many.models() == {}
    assert many.load("tiny", archives["tiny"]).status == 200
    assert many.models() == {"tiny": str(archives["tiny"])}
    assert many.ask("GET", "/models/tiny").document["modelUrl"] == str(archives["tiny"])
    assert number_in(many.invoke("tiny")) == 3
    assert many.unload("tiny").status == 200
    assert many.models() == {}
    assert many.invoke("tiny").status == 404


def test_ensemble_loads_with_members(many: FrontEnd, archives: dict[str, Path], repository: ModelRepository) -> None:
    """Its members lie beside it, and the front end takes the one that says platform: "ensemble"."""
    assert many.load("whole", archives["whole"]).status == 200
    assert number_in(many.invoke("whole")) == 1
    assert many.unload("whole").status == 200
    unloads = [f"::{member.model}' version 1" for member in repository.manifest("whole", 1).package.members]
    # The front end waits for the ensemble alone.
    wait_until(lambda: all(fragment in many.log.read_text() for fragment in unloads), seconds=START_SECONDS)


def test_copies_served_side_by_side(many: FrontEnd, repository: ModelRepository, folder: Path) -> None:
    """SageMaker calls them by hashes, names the archive in a header, and does not wait for one load before the next."""
    with unpacked_archives(repository, folder, PackageRequest(("tiny",), multi_model=True, copies=3)) as roots:
        hashes = {f"{number:032x}": archive for number, archive in enumerate(roots)}
        with ThreadPoolExecutor(len(roots)) as pool:
            loads = pool.map(lambda key: many.load(key, roots[hashes[key]], target_model=hashes[key]), hashes)
        assert [load.status for load in loads] == [200] * 3
        for name, archive in hashes.items():
            answer = many.invoke(name, headers={TARGET_HEADER: archive})
            assert (number_in(answer), answer.document["model_name"]) == (3, archive)
        for name, archive in hashes.items():
            assert many.unload(name, target_model=archive).status == 200
            assert many.invoke(name).status == 404


def test_ensembles_sharing_members_stay_independent(many: FrontEnd, repository: ModelRepository, folder: Path) -> None:
    """Neither has the members of the other loaded again."""
    member = repository.manifest("whole", 1).package.members[0].model
    with unpacked_archives(repository, folder, PackageRequest(("whole",), multi_model=True, copies=2)) as roots:
        assert [many.load(archive, root).status for archive, root in roots.items()] == [200, 200]
        assert [number_in(many.invoke(archive)) for archive in roots] == [1, 1]
        loads = [line for line in many.log.read_text().splitlines() if "loading: " in line]
        assert [sum(f"{root}::{member}:1" in line for line in loads) for root in roots.values()] == [1, 1]
        first, second = roots
        many.unload(first)
        assert number_in(many.invoke(second)) == 1
        many.unload(second)


def test_binary_body(many: FrontEnd, loaded: Callable[[str], str]) -> None:
    import tritonclient.http as client

    x = client.InferInput("x", [2, 1], "FP32")
    x.set_data_from_numpy(np.zeros((2, 1), np.float32), binary_data=True)
    outputs = [client.InferRequestedOutput(name, binary_data=True) for name in ("three", "whole")]
    body, header = client.InferenceServerClient.generate_request_body([x], outputs=outputs)
    answer = many.invoke(loaded("tiny"), body, content_type=f"{BINARY}{header}")
    assert (answer.status, answer.content_type.startswith(BINARY)) == (200, True)
    size = int(answer.content_type.removeprefix(BINARY))
    result = client.InferenceServerClient.parse_response_body(answer.body, header_length=size)
    assert result.as_numpy("three").tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize(
    ("body", "content_type", "error"),
    [
        (b"{", "application/json", "failed to parse the request JSON"),
        (BODY.replace(b"FP32", b"INT64"), "application/json", "expects 'FP32'"),
        (BODY, f"{BINARY}999999", "inference header size should be in range"),
    ],
)
def test_wrong_request_is_400(
    body: bytes, content_type: str, error: str, many: FrontEnd, loaded: Callable[[str], str]
) -> None:
    answer = many.invoke(loaded("tiny"), body, content_type=content_type)
    assert answer.status == 400
    assert error in answer.error
    assert number_in(many.invoke("tiny")) == 3


def test_unloaded_model_is_404(many: FrontEnd) -> None:
    """Model that is not loaded is 404."""
    for method, path in (("POST", "/models/none/invoke"), ("GET", "/models/none"), ("DELETE", "/models/none")):
        assert many.ask(method, path, BODY if method == "POST" else b"").status == 404


def test_loaded_name_or_folder_is_409(many: FrontEnd, archives: dict[str, Path], loaded: Callable[[str], str]) -> None:
    """A name or folder that is already loaded is 409."""
    loaded("tiny")
    assert [many.load(name, archives["tiny"]).status for name in ("tiny", "another")] == [409, 409]
    assert number_in(many.invoke("tiny")) == 3


def test_out_of_memory_is_507(many: FrontEnd, archives: dict[str, Path], loaded: Callable[[str], str]) -> None:
    """At a load and at a request, upon which SageMaker unloads other models."""
    assert many.load("heavier", archives["heavier"]).status == 507
    answer = many.invoke(loaded("heavy"))
    assert (answer.status, "CUDA out of memory" in answer.error) == (507, True)
    assert many.ask("GET", "/ping").status == 200


def test_unloadable_model_is_400(many: FrontEnd, archives: dict[str, Path]) -> None:
    """Model that does not load is 400."""
    for _ in range(2):
        answer = many.load("broken", archives["broken"])
        assert (answer.status, "no weights" in answer.error) == (400, True)
    assert many.models() == {}
    assert many.ask("GET", "/ping").status == 200


def test_ping_needs_the_variable(archives: dict[str, Path], installation: Installation, folder: Path) -> None:
    """Without it one model that does not load fails the health check of a multi-model endpoint."""
    with front_end(None, installation, folder / "ready.log") as running:
        assert running.ask("GET", "/ping").status == 200
        assert running.load("broken", archives["broken"]).status == 400
        assert running.ask("GET", "/ping").status == 400


def test_folder_around_models_refused(many: FrontEnd, archives: dict[str, Path], tmp_path: Path) -> None:
    """Folder around the models is refused."""
    shutil.copytree(archives["tiny"], tmp_path / "archive" / "models")
    assert many.load("around", tmp_path / "archive").status == 400
    assert many.models() == {}


def test_default_model_answers_invocations(
    repository: ModelRepository, installation: Installation, site: Path, folder: Path
) -> None:
    """The models beside it are not loaded."""
    request = PackageRequest(("tiny", "whole"), default_model="whole")
    (plan,) = plan_archives(repository, request, folder)
    with (
        unpacked_archives(repository, folder, request) as roots,
        front_end(
            next(iter(roots.values())), installation, folder / "single.log", plan.archive.environment, site
        ) as running,
    ):
        assert running.ask("GET", "/ping").status == 200
        answer = running.ask("POST", "/invocations", BODY)
        assert (number_in(answer), answer.document["model_name"]) == (1, "whole")
        assert "loading: tiny" not in running.log.read_text()
        assert running.ask("GET", "/invocations").status == 405


def test_only_model_answers_versioned(
    repository: ModelRepository, installation: Installation, site: Path, folder: Path
) -> None:
    """Only model answers under its version."""
    with (
        unpacked_archives(repository, folder, PackageRequest(("tiny",))) as roots,
        front_end(roots.popitem()[1], installation, folder / "only.log", site=site) as running,
    ):
        answer = running.ask("POST", "/invocations", BODY)
        assert (answer.document["model_name"], answer.document["model_version"]) == ("tiny", "3")
