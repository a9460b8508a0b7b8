"""Image models beside each other in one release, behind Pillow and behind DALI: each answers as timm does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plansmith.triton.client import Client

from ...support.cli.commands import compile_model, serve
from ...support.pipelines.columns import column
from ...support.pipelines.images import encoded, photographs, timm_scores

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("images-beside")]

CLASSES = 6
PIXELS = "1x3x160x160:2x3x160x160:4x3x160x160"
NAMES = ("first", "second", "grey")
MEMBERS = {"python": ["images", "grey-images"], "dali": ["encoded", "dali", "grey-dali"]}
"""What makes pixels: the first two models share it; the third normalises images otherwise, and has its own."""
CLOSE = {"python": 1e-5, "dali": 5e-3}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Three networks with random weights, saved in a folder as timm saves them."""
    import timm
    import torch
    from timm.models import save_for_hf

    folder, by_name = tmp_path_factory.mktemp("images"), {}
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        values = {"mean": (0.2, 0.3, 0.4), "std": (0.5, 0.5, 0.5)} if name == "grey" else {}
        model: Any = timm.create_model("test_resnet", pretrained=False, num_classes=CLASSES).eval()
        model.pretrained_cfg = {**model.pretrained_cfg, **values}
        save_for_hf(model, str(folder / name), safe_serialization=True)
        by_name[name] = model
    return folder, by_name


@pytest.mark.parametrize("preprocessing", MEMBERS)
def test_models_label_image_together(models: tuple[Path, dict[str, Any]], tmp_path: Path, preprocessing: str) -> None:
    """Models that normalise images alike share what reads them; scores are those that timm gives."""
    folder, networks = models
    first, *others = NAMES
    own = {"preprocessing": preprocessing, "top_k": CLASSES}
    shapes = {"pixel_values": PIXELS}
    beside = {name: {"source": f"timm:{folder / name}", "shapes": shapes, "pipeline": own} for name in others}
    spec = {"source": f"timm:{folder / first}", "shapes": shapes, "pipeline": {**own, "models": beside}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({"name": "looker", **spec}))
    document = compile_model(tmp_path / "artifacts", str(tmp_path / "spec.yaml"))
    assert (document["verdict"], {model["verdict"] for model in document["beside"].values()}) == ("passed", {"passed"})
    makers = [member for member in document["members"] if not member.endswith(("model", "labels"))]
    assert makers == MEMBERS[preprocessing]
    files = [encoded(image, "PNG") for image in list(photographs().values())[:3]]
    with (
        serve(document["repository"], "looker", tmp_path / "said") as (http, _),
        Client(http, model="looker") as client,
    ):
        answer = client.infer({"image": column(*files)})
    for name in NAMES:
        start = "" if name == first else f"{name}_"
        scores = timm_scores(networks[name], files).numpy()
        for row, labels in enumerate(answer[f"{start}label"]):
            expected = scores[row, [int(label) for label in labels]]
            np.testing.assert_allclose(answer[f"{start}score"][row], expected, atol=CLOSE[preprocessing])
    assert len({answer[f"{start}score"].tobytes() for start in ("", "second_", "grey_")}) == len(NAMES)
