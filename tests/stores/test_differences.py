"""What two releases are said to differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import RepositoryError
from plansmith.pipelines.served.requests import SCRIPT_FILE
from plansmith.records.model import FileEntry, Precision, Tensor
from plansmith.records.pipeline import Script
from plansmith.records.release import MODEL_FOLDER, Manifest
from plansmith.records.validation import (
    Evaluation,
    Interval,
    OutputAgreement,
    OutputComparison,
    ServedReport,
    TaskMetric,
    Tolerance,
)
from plansmith.stores.diff import Difference, Side, differences, side_of_folder, side_of_stored
from plansmith.stores.store import Store

from ..support.faults.packages import draft_of, write_package
from ..support.stores.filled import fill
from ..support.stores.releases import MODEL


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A manifest with a gate, held-out samples and a served check."""
    draft = draft_of(write_package(tmp_path / "package", "0"))
    return draft.model_copy(update={"version": 1, "validation": judged(draft, 1e-5, 0.91), "served": served(4.2)})


def judged(made: Manifest, error: float, score: float, **more: Any) -> Any:
    """A report of the gate with one output of this error, and one measure."""
    comparison = OutputComparison(
        case="opt", output="logits", shape=(8, 2), elements=16, magnitude=1.0, max_absolute=error, max_relative=error,
        quantile_absolute=error, quantile_relative=error, min_cosine=1 - error, variance=1.0, failures=(),
    )  # fmt: skip
    agreement = OutputAgreement(
        output="logits", samples=256, mean_cosine=1 - error, min_cosine=1 - 2 * error, sqnr_db=20.0, kl=None,
        same_first=None, same_neighbour=None, failures=(),
    )  # fmt: skip
    metric = TaskMetric(
        name="accuracy", samples=256, reference=0.92, candidate=score, max_drop=0.02, proven=True, failures=(),
        change=Interval(value=score - 0.92, low=-0.01, high=0.01),
    )  # fmt: skip
    evaluation = Evaluation(data="labelled.csv", samples=256, agreements=(agreement,), metrics=(metric,), worst=())
    tolerance = Tolerance(max_relative=0.1, quantile_relative=0.1, min_cosine=0.9)
    fields = {"comparisons": (comparison,), "evaluation": evaluation, "tolerances": {"logits": tolerance}}
    return made.validation.model_copy(update=fields | more)


def served(milliseconds: float) -> ServedReport:
    return ServedReport(
        server_version="2.51", backend="real", backend_runtime="ONNX Runtime 1.20", requests=40, concurrent_clients=4,
        median_seconds=milliseconds / 1000, worst_seconds=1.0, checks=(), completed={},
    )  # fmt: skip


def section_differences(old: Manifest, new: Manifest, section: str) -> dict[str, Difference]:
    """The differences of a section, where all others are empty."""
    all_of_them = differences(Side("a", old, "x"), Side("b", new, "x"))
    assert [title for title, lines in all_of_them.sections.items() if lines and title != section] == []
    return {line.what: line for line in all_of_them.sections[section]}


def test_same_release_differs_in_nothing(manifest: Manifest) -> None:
    """The same release differs in nothing."""
    same = differences(Side("a", manifest, "x"), Side("b", manifest.model_copy(update={"version": 2}), "x"))
    assert same.is_empty
    assert list(same.sections) == ["interface", "accuracy", "speed", "size", "parts", "provenance", "spec"]


def test_interfaces_and_batches_compared(manifest: Manifest) -> None:
    """Inputs, outputs and the largest batch are compared."""
    interface = manifest.package.interface
    changed_interface = interface.model_copy(
        update={
            "inputs": (*interface.inputs, Tensor(name="mask", dtype="int64", dims=("batch",))),
            "outputs": (interface.outputs[0].model_copy(update={"dims": ("batch", 3)}),),
        }
    )
    package = manifest.package.model_copy(update={"interface": changed_interface, "max_batch_size": 8})
    lines = section_differences(manifest, manifest.model_copy(update={"package": package}), "interface")
    assert (lines["input mask"].old, lines["input mask"].new) == (None, "int64 [batch]")
    assert (lines["output logits"].old, lines["output logits"].new) == ("float32 [batch, 2]", "float32 [batch, 3]")
    assert (lines["largest batch"].old_value, lines["largest batch"].new_value) == (32, 8)
    assert lines.keys() == {"input mask", "output logits", "largest batch"}


def test_errors_and_limits_compared_numerically(manifest: Manifest) -> None:
    """Errors, measures and limits are compared with their numbers."""
    worse = manifest.model_copy(update={"validation": judged(manifest, 1e-2, 0.90)})
    lines = section_differences(manifest, worse, "accuracy")
    assert (lines["logits, largest error"].old, lines["logits, largest error"].new) == ("1e-05", "0.01")
    assert lines["logits, largest error"].new_value == 1e-2
    assert (lines["accuracy"].old, lines["accuracy"].new_value) == ("0.9100 (FP32 0.9200)", 0.90)
    assert "logits, mean cosine" in lines
    assert "logits, SQNR" not in lines
    failed = judged(manifest, 1e-5, 0.91, verdict="failed", data="other samples")
    lines = section_differences(manifest, manifest.model_copy(update={"validation": failed}), "accuracy")
    assert (lines["verdict"].old, lines["verdict"].new) == ("passed", "failed")
    assert lines["judged on"].new == "other samples"


def test_same_length_script_differs(manifest: Manifest) -> None:
    """Another script of the same length is a difference."""
    script = Script(
        outputs=(),
        cases=(),
        refused=(),
        source="",
    )

    def with_script(digest: str) -> Manifest:
        file = FileEntry(path=f"{MODEL_FOLDER}/{SCRIPT_FILE}", bytes=9, sha256=digest * 64)
        return manifest.model_copy(update={"script": script, "files": (*manifest.files, file)})

    lines = section_differences(with_script("a"), with_script("b"), "provenance")
    assert (lines["script: Digest"].old, lines["script: Digest"].new) == ("a" * 64, "b" * 64)
    assert lines.keys() == {"script: Digest"}


def test_latencies_compared_with_hardware(manifest: Manifest) -> None:
    """Latencies are compared with what they were measured on."""
    lines = section_differences(manifest, manifest.model_copy(update={"served": served(2.1)}), "speed")
    assert lines["median of the served check"].old == "4.2 ms (ONNX Runtime 1.20 on CPU, real backend)"
    assert (lines["median of the served check"].old_value, lines["median of the served check"].new_value) == (4.2, 2.1)


def test_sizes_of_model_and_all(manifest: Manifest) -> None:
    """Sizes are those of the model and of all."""
    files = tuple(
        file.model_copy(update={"bytes": file.bytes + 1024}) if file.path == "model/model.onnx" else file
        for file in manifest.files
    )
    lines = section_differences(manifest, manifest.model_copy(update={"files": files}), "size")
    assert lines.keys() == {"model", "release"}
    assert (lines["model"].new_value or 0) - (lines["model"].old_value or 0) == 1024


def test_sources_compared_by_term(manifest: Manifest) -> None:
    """Where a release comes from is compared term by term."""
    changed = manifest.model_copy(
        update={
            "source": manifest.source.model_copy(update={"revision": "abc", "digest": "1"}),
            "engine": manifest.engine.model_copy(
                update={"toolchain": {"onnxruntime": "1.20"}, "precision": Precision.INT8}
            ),
            "plansmith": "1",
        }
    )
    lines = section_differences(manifest, changed, "provenance")
    assert {term: line.new for term, line in lines.items()} == {
        "release: Engine": "ONNX Runtime, INT8",
        "model: Revision": "abc",
        "model: Digest": "1",
        "tools: onnxruntime": "1.20",
        "plansmith": "1",
    }
    assert lines["model: Revision"].old is None


def test_requests_compared_by_dotted_name(manifest: Manifest) -> None:
    """What was asked for is compared by dotted names."""
    old = manifest.model_copy(update={"spec": {"source": "hf:./a", "triton": {"instances": 1}, "data": None}})
    new = manifest.model_copy(update={"spec": {"source": "hf:./a", "triton": {"instances": 2}, "gpus": ["L4", "T4"]}})
    lines = section_differences(old, new, "spec")
    assert {term: (line.old, line.new) for term, line in lines.items()} == {
        "triton.instances": ("1", "2"),
        "gpus": (None, "L4, T4"),
    }


def test_configurations_compared_by_line(manifest: Manifest) -> None:
    """Configurations are compared line by line."""
    result = differences(Side("a", manifest, "same\nbatch: 8\n"), Side("b", manifest, "same\nbatch: 4\n"))
    assert result.config == ("@@ -1,2 +1,2 @@", " same", "-batch: 8", "+batch: 4")
    assert not result.is_empty


def test_stored_version_equals_its_folder(store: Store, tmp_path: Path) -> None:
    """A version of a store and the folder that it came from are the same."""
    release = fill(store, tmp_path, 1)[0]
    stored, folder = side_of_stored(store, MODEL), side_of_folder(release.folder, "folder")
    assert stored.name == f"{MODEL}@1"
    assert (stored.manifest, stored.config) == (folder.manifest, folder.config)
    with pytest.raises(RepositoryError, match="no version 2"):
        side_of_stored(store, f"{MODEL}@2")
    (release.folder / "config.pbtxt").unlink()
    with pytest.raises(RepositoryError, match=r"config\.pbtxt cannot be read"):
        side_of_folder(release.folder, "folder")
