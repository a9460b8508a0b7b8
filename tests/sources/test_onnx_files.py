"""Which files an ONNX model consists of; a graph may come from anywhere, and is not trusted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import make_spec
from plansmith.errors import SourceError
from plansmith.sources import onnx_file
from plansmith.sources.onnx_file import files_of, weights_of
from plansmith.steps.fetch import fetch, require_unchanged
from plansmith.steps.runner import Listener, StageRunner

from ..support.models.graphs import save, save_product, take


def test_neighbouring_weights_belong_to_model(tmp_path: Path) -> None:
    """The weights beside a graph belong to the model."""
    path, _ = save_product(tmp_path)
    (tmp_path / "other.bin").write_bytes(b"of another model")
    assert files_of(path, weights_of(path)) == [path, tmp_path / "weights.bin"]


def moved_out(folder: Path) -> None:
    weights = folder / "weights.bin"
    weights.rename(folder.parent / "outside.bin")
    weights.symlink_to(folder.parent / "outside.bin")


def cut(folder: Path) -> None:
    with (folder / "weights.bin").open("r+b") as stream:
        stream.truncate(1279)


def made_a_folder(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").mkdir()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (moved_out, "are a link that leads out of the folder of net.onnx"),
        (cut, "is cut off: it has 1,279 bytes, net.onnx needs 1,280"),
        (made_a_folder, "keeps weights in 'weights.bin', and there is no file"),
        (lambda folder: (folder / "weights.bin").unlink(), "keeps weights in 'weights.bin', and there is no file"),
    ],
    ids=["a link out of the folder", "cut off", "a folder", "missing"],
)
def test_incomplete_weights_refused(change: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    """Weights that are not all there are refused."""
    folder = tmp_path / "model"
    folder.mkdir()
    path, _ = save_product(folder)
    change(folder)
    with pytest.raises(SourceError, match=re.escape(says)) as caught:
        files_of(path, weights_of(path))
    assert caught.value.remedy


@pytest.mark.parametrize("location", ["/etc/hostname", "../weights.bin", "a/../../weights.bin", ""])
def test_graph_with_foreign_files_refused(location: str, tmp_path: Path) -> None:
    """A graph that wants files of other folders is refused."""
    path, _ = save_product(tmp_path)
    model = onnx.load(path, load_external_data=False)
    onnx_file.relocate(model, {"weights.bin": location})
    onnx.save(model, path)
    with pytest.raises(SourceError, match="which is no path inside its own folder"):
        files_of(path, weights_of(path))


def test_branch_weights_found(tmp_path: Path) -> None:
    """Weights of a branch are found too."""
    text = """
    branching (bool[1] c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = yes () => (float[2] a) { k = Constant <value = float[2] {1, 2}> () a = Add (x, k) },
            else_branch = no () => (float[2] b) { b = Neg (x) }
        >
    }"""
    path = save(text, tmp_path)
    model = onnx.load(path)
    branch = next(a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    constant = branch.node[0].attribute[0].t
    constant.CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32)))
    onnx.external_data_helper.set_external_data(constant, "inner.bin")
    constant.ClearField("raw_data")
    (tmp_path / "inner.bin").write_bytes(bytes(8))
    onnx.save(model, path)
    assert onnx_file.locations(onnx.load(path, load_external_data=False)) == {"inner.bin": 8}
    assert files_of(path, weights_of(path)) == [tmp_path / "inner.bin", path]


def test_hard_linked_weights_accepted(tmp_path: Path) -> None:
    """Weights with several hard links are taken, which ONNX itself refuses."""
    folder = tmp_path / "a model"
    folder.mkdir()
    path, _ = save_product(folder, "weights.bin")
    (tmp_path / "second name").hardlink_to(folder / "weights.bin")
    with pytest.raises(onnx.checker.ValidationError, match="hard links"):
        onnx.checker.check_model(path)
    component = take(path, tmp_path / "out").components["model"]
    assert component.files == ("model.onnx", "model.onnx.data")
    assert not (tmp_path / "out" / "model.onnx.data").samefile(folder / "weights.bin"), "the user's file is not ours"


def test_scattered_weights_end_beside_graph(tmp_path: Path) -> None:
    """Weights in folders and several files lie beside the graph afterwards."""
    path, _ = save_product(tmp_path)
    model = onnx.load(path, load_external_data=False)
    second = model.graph.initializer.add()
    second.CopyFrom(model.graph.initializer[0])
    second.name = "unused"
    next(entry for entry in second.external_data if entry.key == "location").value = "parts/reference"
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "reference").write_bytes((tmp_path / "weights.bin").read_bytes())
    onnx.save(model, path)
    component = take(path, tmp_path / "out").components["model"]
    assert component.external_files == ("model.onnx.data", "model.onnx.data.1")


def runner(folder: Path, *, force: bool = False, dry: bool = False) -> StageRunner:
    return StageRunner("net", folder / "artifacts", listener=Listener(), force=force, dry=dry)


LIGHT = """
import json, sys
from pathlib import Path
from plansmith.config.spec import make_spec
from plansmith.steps.fetch import fetch, require_unchanged
from plansmith.config.source_reference import parse_reference
from plansmith.steps.runner import Listener, StageRunner
spec = make_spec({"source": f"onnx:{sys.argv[1]}"})
stages = StageRunner("net", Path(sys.argv[2]), listener=Listener(), force=False, dry=False)
source = fetch(stages, spec, parse_reference(spec.source, relative_to=Path()))
require_unchanged(stages, spec, source)
stages.close()
print(json.dumps({"files": [path.name for path in source.files], "modules": sorted(sys.modules)}))
"""


@pytest.mark.slow
def test_surviving_process_reads_no_graph(tmp_path: Path) -> None:
    """The process that must survive never reads a graph."""
    path, _ = save_product(tmp_path)
    command = [sys.executable, "-c", LIGHT, str(path), str(tmp_path / "artifacts")]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert report["files"] == ["net.onnx", "weights.bin"]
    assert not {"onnx", "google.protobuf", "numpy"} & set(report["modules"])


@pytest.mark.slow
def test_graph_read_once_by_content(tmp_path: Path) -> None:
    """A graph is read once for its content wherever it lies."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path, _ = save_product(tmp_path / name)
    spec = make_spec({"source": "onnx:second/net.onnx"})
    reference = parse_reference(spec.source, relative_to=tmp_path)
    assert fetch(runner(tmp_path, dry=True), spec, reference) is None
    stages = runner(tmp_path)
    first = fetch(stages, spec, parse_reference("onnx:first/net.onnx", relative_to=tmp_path))
    stages.close()
    result = fetch(runner(tmp_path, dry=True), spec, reference)
    assert first is not None
    assert result is not None
    assert result.files == (path, path.parent / "weights.bin")
    assert (result.digest, first.cached) == (first.digest, False)
    path.write_bytes(path.read_bytes()[:-9])
    stages = runner(tmp_path)
    with pytest.raises(SourceError, match="is no ONNX model, or is cut off"):
        fetch(stages, spec, reference)
    stages.close()


@pytest.mark.parametrize("change", [cut, lambda folder: (folder / "weights.bin").unlink()], ids=["cut off", "missing"])
def test_changing_weights_noticed(change: Callable[[Path], None], tmp_path: Path) -> None:
    """Weights that change while they are read are noticed."""
    save_product(tmp_path)
    spec = make_spec({"source": "onnx:net.onnx"})
    stages = runner(tmp_path, force=True)
    source = fetch(stages, spec, parse_reference(spec.source, relative_to=tmp_path))
    stages.close()
    assert source is not None
    require_unchanged(stages, spec, source)
    change(tmp_path)
    with pytest.raises(SourceError, match="changed while it was read"):
        require_unchanged(stages, spec, source)
