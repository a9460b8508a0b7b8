"""What Triton's Python backend loads: safetensors, exact versions, and a file that finds its packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from plansmith.compilers.python_backend.model import load_folder
from plansmith.compilers.python_backend.model_folder import ServedModel, as_safetensors, read_settings, write_folder
from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.data.reference import read_case
from plansmith.errors import EngineError, SourceError
from plansmith.records.model import AxisRange, Precision, Tensor

from ...support.models.python_backend import ODD_INPUTS, ODD_SHAPES, lay_out, write_odd

SETTINGS = ServedModel(
    scheme="hf",
    trust_remote_code=False,
    task=None,
    described={},
    wanted=(),
    inputs=(Tensor(name="x", dtype="float32", dims=("batch", 4)),),
    outputs=(Tensor(name="y", dtype="float32", dims=("batch",)),),
    axes={"batch": AxisRange(min=1, opt=2, max=4)},
    precision=Precision.BF16,
    torch_compile="max-autotune",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with a configuration and weights of four numbers."""
    folder = tmp_path / "source"
    (folder / "2_Dense").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"w": torch.arange(4.0)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("lasting", [True, False])
def test_safetensors_linked_where_unwritten(lasting: bool, source: Path, tmp_path: Path) -> None:
    """Safetensors files are linked where nobody writes into them, and copied elsewhere."""
    (tmp_path / "out").mkdir()
    link = source / "linked.safetensors"  # as the hub's cache has them
    link.symlink_to("model.safetensors")
    engine = write_folder(SETTINGS, source, [source / "config.json", link], tmp_path / "out", lasting=lasting)
    weights = tmp_path / "out" / "source" / "linked.safetensors"
    assert not weights.is_symlink()
    assert weights.samefile(link) is lasting
    assert weights.read_bytes() == link.read_bytes()
    component = engine.components["model"]
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert set(component.files) == files
    assert read_settings(tmp_path / "out") == SETTINGS


def test_requirements_name_gate_versions(source: Path, tmp_path: Path) -> None:
    """The requirements name every library in the version that the gate ran with."""
    (tmp_path / "out").mkdir()
    write_folder(SETTINGS, source, [source / "config.json"], tmp_path / "out", lasting=False)
    pinned = dict(line.split("==") for line in (tmp_path / "out" / "requirements.txt").read_text().splitlines())
    assert {"plansmith", "torch", "transformers", "timm", "safetensors", "numpy"} <= set(pinned)
    assert pinned["numpy"] == "1.26.4"
    assert all(version(name).partition("+")[0] == number for name, number in pinned.items() if name != "numpy")


def test_pickled_weights_become_safetensors(source: Path, tmp_path: Path) -> None:
    """Pickled weights become safetensors and those beside safetensors are left out."""
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "b": shared, "turned": shared.T, "epoch": 3}, source / "2_Dense" / "pytorch_model.bin")
    torch.save({"old": shared}, source / "pytorch_model.bin")
    files = sorted(path for path in source.rglob("*") if path.is_file())
    (written,) = as_safetensors(source, files, tmp_path / "out")
    assert written == tmp_path / "out" / "2_Dense" / "model.safetensors"
    weights = load_file(written)
    assert {name: tensor.tolist() for name, tensor in weights.items()} == {
        "a": shared.tolist(),
        "b": shared.tolist(),
        "turned": shared.T.tolist(),
    }


def test_other_pickle_refused(source: Path, tmp_path: Path) -> None:
    """A pickle of something else is refused with its name."""
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin cannot be read") as refused:
        as_safetensors(source, [source / "pytorch_model.bin"], tmp_path / "out")
    assert "safetensors" in refused.value.remedy


def test_sharded_pickles_answer_from_folder(tmp_path: Path) -> None:
    """A model whose weights are sharded pickles answers from its folder as before."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32,
    )  # fmt: skip
    model = BertModel(config)
    (folder := tmp_path / "bert").mkdir()
    config.architectures = ["BertModel"]
    config.save_pretrained(folder)
    weights = model.state_dict()
    names = sorted(weights)
    places = {name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin" for number, name in enumerate(names)}
    for place in set(places.values()):
        torch.save({name: weights[name] for name in names if places[name] == place}, folder / place)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    laid = lay_out(
        folder, tmp_path, allow_pickle=True, shapes={"input_ids": {"min": [1, 1], "opt": [2, 4], "max": [4, 8]}}
    )
    assert not list(laid.folder.rglob("*.bin*"))
    running = load_folder(laid.folder, "cpu")
    for case in laid.onnx.reference.cases:
        stored = read_case(case, laid.reference)
        answer = running.ask(stored.feed)
        for name, expected in stored.answer.items():
            assert np.abs(np.subtract(answer[name], expected, dtype=np.float32)).max() < 1e-6


def test_other_outputs_refused(tmp_path: Path) -> None:
    """A folder whose model has other outputs here is refused, and the requirements are named."""
    odd = write_odd(tmp_path / "odd")
    laid = lay_out(odd, tmp_path, shapes=ODD_SHAPES, described=ODD_INPUTS, trust_remote_code=True)
    settings = read_settings(laid.folder)
    renamed = settings.model_copy(
        update={"outputs": tuple(tensor.model_copy(update={"name": "other"}) for tensor in settings.outputs)}
    )
    (laid.folder / "plansmith.json").write_text(renamed.model_dump_json())
    with pytest.raises(EngineError, match="last_hidden_state") as refused:
        load_folder(laid.folder, "cpu")
    assert "requirements.txt" in refused.value.remedy


def test_missing_device_is_named(tmp_path: Path) -> None:
    """A device that is not there is named."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    odd = write_odd(tmp_path / "odd")
    laid = lay_out(odd, tmp_path, shapes=ODD_SHAPES, described=ODD_INPUTS, trust_remote_code=True)
    with pytest.raises(EngineError, match="cuda:1") as refused:
        load_folder(laid.folder, "cuda:1")
    assert refused.value.remedy


def test_named_folders_come_first(source: Path, tmp_path: Path) -> None:
    """In an interpreter of its own, with another NumPy and a plansmith that a .pth file leads to."""
    (tmp_path / "out").mkdir()
    write_folder(SETTINGS, source, [source / "config.json"], tmp_path / "out", lasting=False)
    for name in ("one/numpy", "two/numpy", "code/plansmith/compilers/python_backend"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "one" / "numpy" / "__init__.py").write_text("which = 'one'\n")
    (tmp_path / "two" / "numpy" / "__init__.py").write_text("which = 'two'\n")
    (tmp_path / "two" / "editable.pth").write_text(f"{tmp_path / 'code'}\n")
    (tmp_path / "code" / "plansmith" / "__init__.py").write_text("")
    (tmp_path / "code" / "plansmith/compilers/python_backend/model.py").write_text(
        "import numpy\nclass TritonPythonModel:\n    which = numpy.which\n"
    )
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'out')!r}); import model; print(model.TritonPythonModel.which)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        env={**os.environ, SITE_VARIABLE: f"{tmp_path / 'one'}:{tmp_path / 'two'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "one\n"
