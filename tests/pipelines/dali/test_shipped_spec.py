"""The Inception v3 that ships, behind DALI: compiled for two targets, served by a real Triton, and asked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from plansmith.config.target_names import shipped_file
from plansmith.config.targets import load_target
from plansmith.errors import ServedCheckError
from plansmith.sources.timm import make_random
from plansmith.steps.worker.__main__ import RANDOM_SEED
from plansmith.triton.client import Client

from ...support.cli.command import CommandLine
from ...support.pipelines.columns import column
from ...support.pipelines.images import encoded, photographs
from ...support.source import ROOT
from ...support.triton.followed import Followed

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("dali")]

NAME = "inception-v3-dali"
SHAPES = "1x3x299x299:2x3x299x299:4x3x299x299"


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What compiling it tells, in small batches; the container's ONNX Runtime and DALI are those installed here."""
    terminal = CommandLine(tmp_path_factory.mktemp("inception"))
    spec = yaml.safe_load((ROOT / "configs" / "models" / f"{NAME}.yaml").read_text())
    own, container = spec["target"]
    local_target = load_target(own)
    assert local_target.onnxruntime is not None
    installed = {
        "onnxruntime": local_target.onnxruntime.model_dump(mode="json"),
        "dali": local_target.dali,
        "devices": ["cpu"],
    }
    runtime = yaml.safe_load(shipped_file(container).read_text()) | installed
    (terminal.folder / f"{container}.yaml").write_text(yaml.safe_dump(runtime))
    targets = [own, f"{container}.yaml"]
    spec |= {"target": targets, "shapes": {"pixel_values": SHAPES}, "repository": "models"}
    (terminal.folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    answers = [terminal.document("compile", "spec.yaml", "--target", target)["models"] for target in targets]
    models = [model for (model,) in answers]
    assert [model["target"] for model in models] == [own, container]
    return models


def test_inception_compiled_for_both_targets(releases: list[dict[str, Any]]) -> None:
    """Both releases answer as timm does, here and on Triton, and their DALI has the threads of the spec."""
    for release in releases:
        assert list(release["members"]) == ["encoded", "dali", "model", "labels"]
        assert all(agreement["same"] for agreement in release["pipeline"]["agreements"])
        assert json.loads(Path(release["manifest"]).read_text())["served"]["dali"] == "stand-in"
        config = (Path(release["model_path"]) / "members" / "dali" / "config.pbtxt").read_text()
        assert 'key: "num_threads"' in config
        assert 'string_value: "4"' in config


def scores_of_timm(files: list[bytes], folder: Path) -> np.ndarray[Any, Any]:
    """The five best scores of timm's own model with the same weights, behind its own transform."""
    import timm
    import torch

    make_random("inception_v3", folder, seed=RANDOM_SEED)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform: Any = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.open(BytesIO(file)).convert("RGB")) for file in files])
        return np.asarray(model(pixels).softmax(-1).topk(5).values)


def test_bad_images_harm_no_request(releases: list[dict[str, Any]], tmp_path: Path) -> None:
    """Photographs get timm's scores while stripes and damaged files of other requests are refused in words."""
    files = [encoded(photographs()["flower"], "PNG"), encoded(photographs()["china"], "JPEG", quality=95)]
    stripes = [encoded(Image.new("RGB", size), "PNG") for size in ((1, 100_000), (100_000, 1))]
    bad = [*stripes, files[0][:-100], files[1][: len(files[1]) // 2], b"no image", b""]
    expected = scores_of_timm(files, tmp_path / "source")
    with Followed(Path(releases[0]["repository"])) as server:
        server.wait_for_models(NAME)

        def ask(number: int) -> None:
            with Client(server.http_url, model=NAME) as client:
                with pytest.raises(ServedCheckError, match="the image in row 1 is refused"):
                    client.infer({"image": column(files[0], bad[number])})
                answer = client.infer({"image": column(*files)})
            np.testing.assert_allclose(answer["score"], expected, atol=5e-3)
            assert all(len({*row}) == len(row) for row in answer["label"].tolist())

        with ThreadPoolExecutor(len(bad)) as threads:
            list(threads.map(ask, range(len(bad))))
