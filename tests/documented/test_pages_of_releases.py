"""The pages on releases and repositories: what they are made from, signatures, provenance, stores, checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.certificates import KeyRing
from ..support.cli.documented_sessions import follow, plansmith
from ..support.documentation import code_blocks, read_page
from ..support.models.encoders import save_bert

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(300)]


CONFIG = """\
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "score" data_type: TYPE_INT64 dims: [ -1 ] } ]
model_warmup [
  {
    name: "full"
    batch_size: 16
    inputs { key: "ids" value { data_type: TYPE_INT64 dims: [ 16, 128 ] zero_data: true } }
  }
]
"""


@pytest.mark.usefixtures("bucket")
def test_signing_page_runs(minilm: Path) -> None:
    """A release is signed, published and pulled by machines that ask for a signature."""
    plansmith(minilm, "publish", "minilm", "s3://models/unsigned")
    (minilm / "policy.yaml").write_text("keys: [release.pub]\n")
    KeyRing(minilm).certificate("release", "release")
    follow("docs/signing.md", minilm)


def test_provenance_page_runs(minilm: Path) -> None:
    """The files of a release that tell of its origin are shown."""
    follow("docs/provenance.md", minilm)


@pytest.mark.usefixtures("bucket")
def test_stores_page_runs(minilm: Path) -> None:
    """A version is pulled and synced, a cache is shared; the rest: tests/stores/test_documented_session.py."""
    plansmith(minilm, "publish", "minilm", "s3://models/prod", "--alias", "champion", "--alias", "current")
    save_bert(minilm / "bert", "Model")
    (minilm / "minilm.yaml").write_text("source: hf:./bert\nname: minilm\nrepository: other/repository\n")
    follow("docs/stores.md", minilm, headings=("Pulling and syncing", "A cache for several machines"))


def test_sources_page_runs(tmp_path: Path) -> None:
    """A program of torch.export is compiled as the page makes it."""
    import torch

    saving = code_blocks(read_page("sources"), "python")[0].replace("ranker.pt2", str(tmp_path / "ranker.pt2"))
    exec(saving, {"model": torch.nn.Linear(8, 2)})
    follow("docs/sources.md", tmp_path)


def test_triton_page_checks_repository(tmp_path: Path) -> None:
    """A repository of somebody else's is checked; the models of other sections: tests/journeys/test_minilm.py."""
    from onnx import TensorProto, helper, save

    ids, score = (helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "n"]) for name in ("ids", "score"))
    graph = helper.make_graph([helper.make_node("Identity", ["ids"], ["score"])], "ranker", [ids], [score])
    for version in ("1", "01"):
        (tmp_path / "models" / "ranker" / version).mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        save(model, tmp_path / "models" / "ranker" / version / "model.onnx")
    (tmp_path / "models" / "ranker" / "config.pbtxt").write_text(CONFIG)
    follow("docs/triton.md", tmp_path, headings=("Checking a repository",), failing=("plansmith check models",))
