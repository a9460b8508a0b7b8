"""What two releases are said to differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import RepositoryError
from plansmith.pipelines.served.scripting import SCRIPT_FILE
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
    made = draft_of(write_package(tmp_path / "package", "0"))
    return made.model_copy(update={"version": 1, "validation": judged(made, 1e-5, 0.91), "served": served(4.2)})


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


def found(old: Manifest, new: Manifest, section: str) -> dict[str, Difference]:
    """The differences of a section, where all others are empty."""
    all_of_them = differences(Side("a", old, "x"), Side("b", new, "x"))
    assert [title for title, lines in all_of_them.sections.items() if lines and title != section] == []
    return {line.what: line for line in all_of_them.sections[section]}


def test_the_same_release_differs_in_nothing(manifest: Manifest) -> None:
    same = differences(Side("a", manifest, "x"), Side("b", manifest.model_copy(update={"version": 2}), "x"))
    assert same.is_empty
    assert list(same.sections) == ["interface", "accuracy", "speed", "size", "parts", "provenance", "spec"]


def test_inputs_outputs_and_the_largest_batch_are_compared(manifest: Manifest) -> None:
    interface = manifest.package.interface
    other = interface.model_copy(
        update={
            "inputs": (*interface.inputs, Tensor(name="mask", dtype="int64", dims=("batch",))),
            "outputs": (interface.outputs[0].model_copy(update={"dims": ("batch", 3)}),),
        }
    )
    package = manifest.package.model_copy(update={"interface": other, "max_batch_size": 8})
    told = found(manifest, manifest.model_copy(update={"package": package}), "interface")
    assert (told["input mask"].old, told["input mask"].new) == (None, "int64 [batch]")
    assert (told["output logits"].old, told["output logits"].new) == ("float32 [batch, 2]", "float32 [batch, 3]")
    assert (told["largest batch"].old_value, told["largest batch"].new_value) == (32, 8)
    assert told.keys() == {"input mask", "output logits", "largest batch"}


def test_errors_measures_and_limits_are_compared_with_their_numbers(manifest: Manifest) -> None:
    worse = manifest.model_copy(update={"validation": judged(manifest, 1e-2, 0.90)})
    told = found(manifest, worse, "accuracy")
    assert (told["logits, largest error"].old, told["logits, largest error"].new) == ("1e-05", "0.01")
    assert told["logits, largest error"].new_value == 1e-2
    assert (told["accuracy"].old, told["accuracy"].new_value) == ("0.9100 (FP32 0.9200)", 0.90)
    assert "logits, mean cosine" in told
    assert "logits, SQNR" not in told
    failed = judged(manifest, 1e-5, 0.91, verdict="failed", data="other samples")
    told = found(manifest, manifest.model_copy(update={"validation": failed}), "accuracy")
    assert (told["verdict"].old, told["verdict"].new) == ("passed", "failed")
    assert told["judged on"].new == "other samples"


def test_another_script_of_the_same_length_is_a_difference(manifest: Manifest) -> None:
    script = Script(outputs=(), cases=(), refused=(), source="", agreements=())

    def with_script(digest: str) -> Manifest:
        file = FileEntry(path=f"{MODEL_FOLDER}/{SCRIPT_FILE}", bytes=9, sha256=digest * 64)
        return manifest.model_copy(update={"script": script, "files": (*manifest.files, file)})

    told = found(with_script("a"), with_script("b"), "provenance")
    assert (told["script: Digest"].old, told["script: Digest"].new) == ("a" * 64, "b" * 64)
    assert told.keys() == {"script: Digest"}


def test_latencies_are_compared_with_what_they_were_measured_on(manifest: Manifest) -> None:
    told = found(manifest, manifest.model_copy(update={"served": served(2.1)}), "speed")
    assert told["median in Triton"].old == "4.2 ms (ONNX Runtime 1.20 on CPU, real backend)"
    assert (told["median in Triton"].old_value, told["median in Triton"].new_value) == (4.2, 2.1)


def test_sizes_are_those_of_the_model_and_of_all(manifest: Manifest) -> None:
    files = tuple(
        file.model_copy(update={"bytes": file.bytes + 1024}) if file.path == "model/model.onnx" else file
        for file in manifest.files
    )
    told = found(manifest, manifest.model_copy(update={"files": files}), "size")
    assert told.keys() == {"model", "release"}
    assert (told["model"].new_value or 0) - (told["model"].old_value or 0) == 1024


def test_where_it_comes_from_is_compared_term_by_term(manifest: Manifest) -> None:
    other = manifest.model_copy(
        update={
            "source": manifest.source.model_copy(update={"revision": "abc", "digest": "1"}),
            "engine": manifest.engine.model_copy(
                update={"toolchain": {"onnxruntime": "1.20"}, "precision": Precision.INT8}
            ),
            "plansmith": "1",
        }
    )
    told = found(manifest, other, "provenance")
    assert {what: line.new for what, line in told.items()} == {
        "release: Engine": "ONNX Runtime, INT8",
        "model: Revision": "abc",
        "model: Digest": "1",
        "tools: onnxruntime": "1.20",
        "plansmith": "1",
    }
    assert told["model: Revision"].old is None


def test_what_was_asked_for_is_compared_by_dotted_names(manifest: Manifest) -> None:
    old = manifest.model_copy(update={"spec": {"source": "hf:./a", "triton": {"instances": 1}, "data": None}})
    new = manifest.model_copy(update={"spec": {"source": "hf:./a", "triton": {"instances": 2}, "gpus": ["L4", "T4"]}})
    told = found(old, new, "spec")
    assert {what: (line.old, line.new) for what, line in told.items()} == {
        "triton.instances": ("1", "2"),
        "gpus": (None, "L4, T4"),
    }


def test_configurations_are_compared_line_by_line(manifest: Manifest) -> None:
    told = differences(Side("a", manifest, "same\nbatch: 8\n"), Side("b", manifest, "same\nbatch: 4\n"))
    assert told.config == ("@@ -1,2 +1,2 @@", " same", "-batch: 8", "+batch: 4")
    assert not told.is_empty


def test_a_version_of_a_store_and_the_folder_that_it_came_from_are_the_same(store: Store, tmp_path: Path) -> None:
    made = fill(store, tmp_path, 1)[0]
    stored, folder = side_of_stored(store, MODEL), side_of_folder(made.folder, "folder")
    assert stored.name == f"{MODEL}@1"
    assert (stored.manifest, stored.config) == (folder.manifest, folder.config)
    with pytest.raises(RepositoryError, match="no version 2"):
        side_of_stored(store, f"{MODEL}@2")
    (made.folder / "config.pbtxt").unlink()
    with pytest.raises(RepositoryError, match=r"config\.pbtxt cannot be read"):
        side_of_folder(made.folder, "folder")
