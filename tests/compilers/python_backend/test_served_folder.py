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
from plansmith.compilers.python_backend.model_folder import ServedModel, read_settings, write_folder
from plansmith.compilers.python_backend.weights import as_safetensors
from plansmith.config.python import SITE_VARIABLE
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
def test_safetensors_are_linked_where_nobody_writes_into_them_and_copied_elsewhere(
    lasting: bool, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    link = source / "linked.safetensors"  # as the hub's cache has them
    link.symlink_to("model.safetensors")
    engine = write_folder(SETTINGS, source, [source / "config.json", link], tmp_path / "out", lasting=lasting)
    taken = tmp_path / "out" / "source" / "linked.safetensors"
    assert not taken.is_symlink()
    assert taken.samefile(link) is lasting
    assert taken.read_bytes() == link.read_bytes()
    component = engine.components["model"]
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert set(component.files) == files
    assert read_settings(tmp_path / "out") == SETTINGS


def test_the_requirements_name_every_library_in_the_version_that_the_gate_ran_with(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    write_folder(SETTINGS, source, [source / "config.json"], tmp_path / "out", lasting=False)
    pinned = dict(line.split("==") for line in (tmp_path / "out" / "requirements.txt").read_text().splitlines())
    assert {"plansmith", "torch", "transformers", "timm", "safetensors", "numpy"} <= set(pinned)
    assert pinned["numpy"] == "1.26.4"
    assert all(version(name).partition("+")[0] == number for name, number in pinned.items() if name != "numpy")


def test_pickled_weights_become_safetensors_and_those_beside_safetensors_are_left_out(
    source: Path, tmp_path: Path
) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "b": shared, "turned": shared.T, "epoch": 3}, source / "2_Dense" / "pytorch_model.bin")
    torch.save({"old": shared}, source / "pytorch_model.bin")
    files = sorted(path for path in source.rglob("*") if path.is_file())
    (written,) = as_safetensors(source, files, tmp_path / "out")
    assert written == tmp_path / "out" / "2_Dense" / "model.safetensors"
    found = load_file(written)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "a": shared.tolist(),
        "b": shared.tolist(),
        "turned": shared.T.tolist(),
    }


def test_a_pickle_of_something_else_is_refused_with_its_name(source: Path, tmp_path: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin cannot be read") as refused:
        as_safetensors(source, [source / "pytorch_model.bin"], tmp_path / "out")
    assert "safetensors" in refused.value.remedy


def test_a_model_whose_weights_are_sharded_pickles_answers_from_its_folder_as_before(tmp_path: Path) -> None:
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


def test_a_folder_whose_model_has_other_outputs_here_is_refused_and_names_the_requirements(tmp_path: Path) -> None:
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


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    odd = write_odd(tmp_path / "odd")
    laid = lay_out(odd, tmp_path, shapes=ODD_SHAPES, described=ODD_INPUTS, trust_remote_code=True)
    with pytest.raises(EngineError, match="cuda:1") as refused:
        load_folder(laid.folder, "cuda:1")
    assert refused.value.remedy


def test_the_file_for_triton_puts_the_named_folders_and_their_links_before_all_others(
    source: Path, tmp_path: Path
) -> None:
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
    asked = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'out')!r}); import model; print(model.TritonPythonModel.which)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", asked],
        env={**os.environ, SITE_VARIABLE: f"{tmp_path / 'one'}:{tmp_path / 'two'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "one\n"
