"""Encoded images in, tensors out: DALI in a stand-in backend of a real Triton, behind the part that looks them over."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from PIL import Image
from tritonclient.utils import InferenceServerException

from plansmith.config.targets import load_target
from plansmith.pipelines.dali.parts import DALI_PART, ENCODED, ENCODED_PART, DaliPlace, dali_part, encoded_part
from plansmith.pipelines.dali.recipe import difference, recipe_from_settings
from plansmith.pipelines.draft import write_part
from plansmith.triton.server.installation import Installation, dali_site
from plansmith.triton.server.process import refused_models
from plansmith.triton.server.server import TritonServer

from ...support.pipelines.dali import real_images, settings
from ...support.waiting import soon

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dali")]

LARGEST = 4
RECIPE = recipe_from_settings(settings())

ENCODED_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "image" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "encoded_images" data_type: TYPE_UINT8 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
dynamic_batching { }
"""
DALI_CONFIG = """
backend: "dali"
max_batch_size: 4
input { name: "encoded_images" data_type: TYPE_UINT8 dims: [ -1 ] }
output { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }
instance_group { kind: KIND_CPU }
parameters { key: "num_threads" value { string_value: "2" } }
"""
MERGING_CONFIG = (
    DALI_CONFIG.replace("[ -1 ]", "[ -1 ] allow_ragged_batch: true")
    + "dynamic_batching { max_queue_delay_microseconds: 2000000 preferred_batch_size: [ 4 ] }\n"
)
ENSEMBLE_CONFIG = """
platform: "ensemble"
max_batch_size: 4
input { name: "image" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }
ensemble_scheduling {
  step { model_name: "encoded" model_version: -1
    input_map { key: "image" value: "image" }
    output_map { key: "encoded_images" value: "encoded_images" } }
  step { model_name: "dali" model_version: -1
    input_map { key: "encoded_images" value: "encoded_images" }
    output_map { key: "x" value: "x" } }
}
"""

BROKEN = {
    "other_input": (('"encoded_images"', '"pictures"'), "such input is not present in the pipeline"),
    "more_outputs": (("output {", 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }\noutput {'), "has 2 outputs"),
    "no_batch": (("max_batch_size: 4", "max_batch_size: 0"), "max_batch_size must be at least 1"),
    "no_file": (("num_threads", "num_threads"), "unable to find"),
    "no_pipeline": (("num_threads", "num_threads"), "cannot open its pipeline"),
}


@pytest.fixture(scope="module")
def packages(installation: Installation) -> Path:
    site = dali_site(installation, load_target("local-cpu"))
    assert site is not None
    return site


@pytest.fixture(scope="module")
def server(installation: Installation, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The ensemble of both parts, a DALI model that merges requests, and some that do not load."""
    folder = tmp_path_factory.mktemp("dali")
    parts, repository = folder / "parts", folder / "repository"
    write_part(encoded_part(RECIPE), "1.26.4", parts)
    write_part(dali_part(RECIPE, DaliPlace(packages, "cpu", LARGEST)), "1.26.4", parts)
    place(repository, "encoded", ENCODED_CONFIG, parts / ENCODED_PART)
    place(repository, "dali", DALI_CONFIG, parts / DALI_PART)
    place(repository, "merging", MERGING_CONFIG, parts / DALI_PART)
    place(repository, "images", ENSEMBLE_CONFIG, None)
    for name, ((old, new), _) in BROKEN.items():
        place(repository, name, DALI_CONFIG.replace(old, new), None if name == "no_file" else parts / DALI_PART)
    broken = repository / "no_pipeline" / "1"
    broken.unlink()
    broken.mkdir()
    (broken / "model.dali").write_bytes(b"no pipeline")
    with TritonServer(
        repository, installation, folder / "log", dali_site=packages, exit_on_error=False, deadline_seconds=180
    ) as running:
        yield running


def place(repository: Path, name: str, config: str, version: Path | None) -> None:
    (repository / name).mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if version is None:
        (repository / name / "1").mkdir()
    else:
        (repository / name / "1").symlink_to(version)


def ask(server: TritonServer, *images: bytes, protocol: str = "grpc") -> np.ndarray[Any, Any]:
    module = getattr(tritonclient, protocol)
    rows = np.empty((len(images), 1), object)
    rows[:, 0] = images
    tensor = module.InferInput("image", rows.shape, "BYTES")
    tensor.set_data_from_numpy(rows)
    with module.InferenceServerClient(getattr(server, f"{protocol}_url")) as client:
        answer: np.ndarray[Any, Any] = client.infer("images", [tensor]).as_numpy("x")
    return answer


def ask_dali(server: TritonServer, model: str, image: bytes) -> np.ndarray[Any, Any]:
    row = np.frombuffer(image, np.uint8)[None]
    tensor = tritonclient.grpc.InferInput(ENCODED.name, row.shape, "UINT8")
    tensor.set_data_from_numpy(row)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        answer: np.ndarray[Any, Any] = client.infer(model, [tensor]).as_numpy("x")
    return answer


def timm_tensors(images: list[bytes]) -> np.ndarray[Any, Any]:
    from timm.data import create_transform

    transform = create_transform((3, 224, 224), interpolation="bicubic", crop_pct=0.95, is_training=False)
    return np.stack([transform(Image.open(io.BytesIO(image)).convert("RGB")).numpy() for image in images])


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    return real_images()[:24]


@pytest.fixture(scope="module")
def expected(images: list[bytes]) -> np.ndarray[Any, Any]:
    return timm_tensors(images)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("rows", [1, LARGEST])
def test_images_match_timm_transform(
    server: TritonServer, images: list[bytes], expected: np.ndarray[Any, Any], rows: int, protocol: str
) -> None:
    """Real images become the tensors of timm's own transform."""
    assert len(images) >= 20
    begins = range(0, len(images), rows)
    tensors = np.concatenate([ask(server, *images[begin : begin + rows], protocol=protocol) for begin in begins])
    deviation = difference(tensors, expected, RECIPE)
    assert deviation.is_within_bound, deviation


def test_simultaneous_requests_get_own_tensors(
    server: TritonServer, images: list[bytes], expected: np.ndarray[Any, Any]
) -> None:
    """Requests at the same time get their own tensors, and the bad ones words."""
    stripe = io.BytesIO()
    Image.new("RGB", (1, 100_000)).save(stripe, "PNG")
    bad = {r"it is a (PNG|JPEG) that is cut off": images[2][:-200], "its shape of 1 x 100000": stripe.getvalue()}

    def ask_both(number: int) -> None:
        tensors = ask(server, images[number])
        assert difference(tensors, expected[number : number + 1], RECIPE).is_within_bound
        for reason, image in bad.items():
            with pytest.raises(InferenceServerException, match=f"row 1 is refused: {reason}"):
                ask(server, images[number], image)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask_both, range(len(images))))


@pytest.mark.parametrize("model", ["dali", "merging"])
def test_damaged_image_harms_own_request(
    server: TritonServer, images: list[bytes], expected: np.ndarray[Any, Any], model: str
) -> None:
    """These skip the first part, as if the damage were such that only decoding shows it."""

    def outcome(number: int) -> str:
        if number == 1:
            with pytest.raises(InferenceServerException, match=r"DALI error: .*decoders\.image"):
                ask_dali(server, model, b"no image at all")
            return "refused"
        tensors = ask_dali(server, model, images[number])
        assert difference(tensors, expected[number : number + 1], RECIPE).is_within_bound
        return "answered"

    with ThreadPoolExecutor(LARGEST) as threads:
        assert list(threads.map(outcome, range(LARGEST))) == ["answered", "refused", "answered", "answered"]
    assert outcome(0) == "answered", "a pipeline that failed is opened anew"


def test_differing_lengths_merged_if_configured(
    server: TritonServer, images: list[bytes], expected: np.ndarray[Any, Any]
) -> None:
    """Requests of different lengths are merged where the configuration lets Triton."""
    before = runs(server)
    with ThreadPoolExecutor(LARGEST) as threads:
        tensors = list(threads.map(lambda image: ask_dali(server, "merging", image), images[:LARGEST]))
    assert difference(np.concatenate(tensors), expected[:LARGEST], RECIPE).is_within_bound
    assert soon(lambda: runs(server)[0] - before[0], LARGEST) == LARGEST
    assert runs(server)[1] - before[1] < LARGEST


def runs(server: TritonServer) -> tuple[int, int]:
    """Rows answered and runs made for them by the merging model."""
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        (counts,) = connection.get_inference_statistics("merging")["model_stats"]
    return counts["inference_count"], counts["execution_count"]


@pytest.mark.parametrize("name", BROKEN)
def test_unloadable_pipeline_refused_with_words(server: TritonServer, name: str) -> None:
    """What the real backend would not load is refused in words."""
    assert BROKEN[name][1] in refused_models(server.log)[name]
