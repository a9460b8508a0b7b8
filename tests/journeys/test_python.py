"""The page on the Python interface, run from top to bottom beside a real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import plansmith
from plansmith.errors import PlansmithError, RepositoryError, UsageError

from ..support.documentation import code_blocks, read_page
from ..support.triton.followed import Followed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small network as timm saves it."""
    import timm
    from timm.models import save_for_hf

    model = timm.create_model("test_resnet", pretrained=False, num_classes=3).eval()
    save_for_hf(model, str(tmp_path / "resnet"), safe_serialization=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of the page runs, and gives what its comments say."""
    *before, client, refused = code_blocks(read_page("python"), "python")
    names: dict[str, Any] = {}
    for block in before:
        exec(block, names)
    printed = capsys.readouterr().out
    assert "resnet@1: onnxruntime, fp32, gate passed" in printed
    assert "['ranker', 'resnet']" in printed
    assert "export: " in printed
    assert (folder / "store").is_dir()
    with Followed(folder / "artifacts" / "repository") as server:
        server.wait_for_models("ranker")
        exec(client.replace("127.0.0.1:8000", server.http_url), names)
    exec(refused, names)
    printed = capsys.readouterr().out
    assert printed.startswith("(2, 3)\n")
    assert "output" in printed.splitlines()[-1]
    assert printed.endswith(".html\n")
    again = plansmith.compile(names["ranker"], example_inputs=(names["torch"].randn(4, 8),), name="ranker")
    assert again.version == 1
    assert again.repository.samefile("artifacts/repository")
    assert repr(again.report).startswith("<ValidationReport passed: largest error ")
    assert "<th>smallest cosine</th>" in again._repr_html_()


def test_wrong_arguments_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong argument is told before any work, and leaves nothing."""
    import torch

    monkeypatch.chdir(tmp_path)
    module = torch.nn.Linear(4, 2)
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (module, {}, "does not say what it takes"),
        (torch.nn.Linear, {"example_inputs": (torch.randn(2, 4),)}, "a type is no source"),
        (module, {"example_inputs": ([1.0],)}, r"example_inputs\[0\] is a list"),
        (module, {"example_inputs": torch.randn(1, 4)}, "has a batch of one"),
        (module, {"example_inputs": torch.randn(2, 4), "name": "../out"}, "name"),
        ("timm:resnet18", {"example_inputs": torch.randn(2, 4)}, "are for a PyTorch module"),
        ("timm:resnet18", {"precison": "fp16"}, "unknown key: argument 'precison'"),
    ]
    for source, options, message in wrong:
        with pytest.raises(UsageError, match=message):
            plansmith.compile(source, **options)
    with pytest.raises(RepositoryError, match="there is no repository"):
        plansmith.load("nowhere")
    assert not [*tmp_path.iterdir()]
    assert issubclass(UsageError, PlansmithError)
