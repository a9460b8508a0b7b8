"""ONNX files through the real command and the real Triton."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from ..support.cli.commands import ask, compile_model, run, serve
from ..support.models.graphs import save_product
from ..support.report.attestations import check_release

SHAPES = "x=1x3x64:2x3x64:4x3x64"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "a person's own"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def product(folder: Path) -> dict[str, Any]:
    """net.onnx, a moving and a fixed dim and weights beside it in a file with two names, compiled."""
    save_product(folder)
    (folder / "second name").hardlink_to(folder / "weights.bin")
    return compile_model(folder.parent / "artifacts", f"onnx:{folder / 'net.onnx'}", "--shapes", SHAPES)


@pytest.mark.slow
@pytest.mark.xdist_group("onnx-end-to-end")
def test_undeclared_batch_values_are_batched(tmp_path: Path) -> None:
    """Values that have no dim except the batch are batched too."""
    infos = [("user", TensorProto.INT64, ["n"]), ("twice", TensorProto.INT64, ["n"])]
    input_info, output_info = (helper.make_tensor_value_info(*info) for info in infos)
    inner = helper.make_graph(
        [helper.make_node("Add", ["user", "user"], ["twice"])], "twice", [input_info], [output_info]
    )
    onnx.save(helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    document = compile_model(tmp_path / "artifacts", f"onnx:{tmp_path / 'm.onnx'}", "--shapes", "user=1:2:4")
    assert {check["batch"] for check in document["served"]["checks"]} >= {1, 2}
    with serve(document["repository"], "m", tmp_path / "said") as (http, _):
        answer = ask(http, "m", {"user": np.array([[3], [4]])}, over_http=True)["twice"]
        np.testing.assert_array_equal(answer, [[6], [8]])


@pytest.mark.slow
@pytest.mark.xdist_group("onnx-end-to-end")
def test_manifest_says_comparison(product: dict[str, Any], folder: Path) -> None:
    """The manifest says what the release was compared with and on what."""
    manifest = json.loads(Path(product["manifest"]).read_text())
    assert manifest["source"]["location"] == str(folder / "net.onnx")
    assert manifest["source"]["scheme"] == "onnx"
    assert manifest["validation"]["reference"].endswith("graph optimisations off")
    assert manifest["validation"]["data"] == "random values"
    assert manifest["onnx"]["reference"]["guessed"]
    assert manifest["package"]["model_files"] == ["model.onnx/model.onnx", "model.onnx/model.onnx.data"]
    assert (folder / "weights.bin").stat().st_nlink == 2, "the user's files are left alone"


@pytest.mark.slow
@pytest.mark.xdist_group("onnx-end-to-end")
def test_release_carries_provenance_and_bom(product: dict[str, Any]) -> None:
    """A release's provenance covers its files as they lie there; it and the bill of materials name source and tools."""
    release = Path(product["model_path"])
    statement, bom = check_release(release)
    (source, *_) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["name"] == "onnx:net.onnx"
    details = statement["predicate"]["runDetails"]
    assert {"onnx", "onnxruntime", "plansmith"} <= details["builder"]["version"].keys()
    assert not [tool for tool in details["builder"]["version"] if " " in tool], "distributions alone"
    assert details["metadata"]["startedOn"] < details["metadata"]["finishedOn"]
    assert bom["metadata"]["component"]["name"] == "net"
    shown = json.loads(run("inspect", str(release), "--json"))
    assert shown["provenance"].startswith(source["name"])
    assert f"{len(bom['components'])} components" in shown["bill of materials"]


@pytest.mark.slow
@pytest.mark.xdist_group("onnx-end-to-end")
def test_release_unchanged_until_weights_change(product: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """The release is unchanged until its weights change."""
    assert not product["unchanged"]
    source = f"onnx:{folder / 'net.onnx'}"
    again = compile_model(folder.parent / "artifacts", source, "--shapes", SHAPES)
    assert again["unchanged"]
    assert all(step["cached"] for step in again["steps"])
    for name in ("net.onnx", "weights.bin"):
        shutil.copy(folder / name, tmp_path)
    values = np.fromfile(tmp_path / "weights.bin", np.float32)
    (tmp_path / "weights.bin").write_bytes((values * 2).tobytes())
    document = compile_model(
        folder.parent / "artifacts", f"onnx:{tmp_path / 'net.onnx'}", "--shapes", SHAPES, "--dry-run"
    )
    assert document["plan"]["export"] == "would run"


@pytest.mark.slow
@pytest.mark.xdist_group("onnx-end-to-end")
def test_release_validated_and_remade(product: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """The release can be validated and made again."""
    release = Path(product["model_path"])
    command = [sys.executable, "-m", "plansmith", "validate", str(release), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "passed"
    assert yaml.safe_load((release / "spec.yaml").read_text())["source"] == f"onnx:{folder / 'net.onnx'}"
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "plansmith").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plansmith "$@"\n')
    (programs / "plansmith").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    process = subprocess.run(
        ["/bin/sh", str(release / "reproduce.sh"), "--repository", str(tmp_path / "repository"), "--json"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    again = Path(json.loads(process.stdout)["model_path"])
    for name in ("config.pbtxt", "model/model.onnx/model.onnx", "model/model.onnx/model.onnx.data"):
        assert (again / name).read_bytes() == (release / name).read_bytes()
