"""What a release has to say about itself."""

from __future__ import annotations

from pathlib import Path

from plansmith.cli.inspection import explain
from plansmith.records.model import FixedAxis, TiedAxis

from ...support.report.examples import int8_release


def test_axes_told_apart(tmp_path: Path) -> None:
    """Fixed axes and tied ones are told apart."""
    manifest = int8_release()
    fixed = FixedAxis(axis="frames", size=4, by="model", reason="it says so")
    tied = TiedAxis(axis="width", to="height", reason="it says so")
    onnx = manifest.onnx.model_copy(update={"fixed": (fixed,), "tied": (tied,)})
    (tmp_path / "manifest.json").write_text(manifest.model_copy(update={"onnx": onnx}).model_dump_json())
    explanation = explain(tmp_path)["export"]
    assert (explanation["fixed"], explanation["tied"]) == ([fixed.explanation], [tied.explanation])
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    assert {"fixed", "tied"}.isdisjoint(explain(tmp_path)["export"])
