"""A PyTorch model through the real command and the real Triton, and what such tests run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ..support.cli.commands import ask, compile_model, run, serve
from ..support.models.python_backend import ODD_INPUTS, write_odd

pytestmark = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.xdist_group("end-to-end")
def test_unexportable_model_served_as_pytorch(tmp_path: Path) -> None:
    """A model that no exporter can follow is published and served as PyTorch."""
    odd = write_odd(tmp_path / "odd")
    spec = tmp_path / "odd.yaml"
    spec.write_text(
        f"source: hf:{odd}\nname: odd\nengine: python\nprecision: bf16\ntrust_remote_code: true\n"
        f"inputs: {json.dumps(ODD_INPUTS)}\nshapes: {{input_ids: '1x1:2x8:4x16'}}\n"
    )
    document = compile_model(tmp_path / "artifacts", str(spec))
    assert (document["engine"], document["precision"], document["verdict"]) == ("python", "bf16", "passed")
    assert document["served"]["backend"] == "real"
    again = compile_model(tmp_path / "artifacts", str(spec))
    assert again["unchanged"]
    assert all(step["cached"] for step in again["steps"])
    release, place = document["model_path"], ["--repository", document["repository"]]
    for arguments in (
        ["inspect", release],
        ["show", "odd", *place],
        ["validate", "odd", *place],
        ["report", "odd", *place],
        ["compile", str(spec), "--artifacts", str(tmp_path / "artifacts"), "--dry-run"],
    ):
        run(*arguments)
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    with serve(document["repository"], "odd", tmp_path / "said") as (http, _):
        answer = ask(http, "odd", {"input_ids": ids}, over_http=True)["last_hidden_state"]
    assert answer.shape == (2, 3, 8)
    assert answer.dtype == np.float32
    assert np.abs(answer).max(axis=(1, 2)).min() >= 100  # as often as each row wants it
