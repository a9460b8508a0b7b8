"""No sample judges a lowering that has looked at it, and a calibration that does not fit is measured and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from plansmith.records.model import FileEntry
from plansmith.steps.cache.local import ENTRY_FILE, CacheEntry

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.precision import lint_graphs
from ...support.precision.given_files import SAMPLES, lay_out

Record = dict[str, Any]


@pytest.fixture
def run(run: InProcess) -> InProcess:
    lay_out(lint_graphs.attention(), run.folder, precision="int8")
    return run


def give(run: InProcess, **data: Any) -> None:
    """Change what the spec says about the data."""
    path = run.folder / "spec.yaml"
    spec = yaml.safe_load(path.read_text())
    path.write_text(json.dumps({**spec, "data": {**spec["data"], **data}}))


def sets_of(run: InProcess, name: str) -> tuple[set[str], set[str]]:
    """The samples that a lowering looked at, and those that judged it, by digest."""
    answer = run("lower", "spec.yaml", "--output", name, "--json")
    assert answer.status == 0, answer
    data = answer.document["data"]
    return set(data["calibration"]["digests"]), set(data["evaluation"]["digests"])


def test_repeated_sample_in_one_set(run: InProcess) -> None:
    """A sample that occurs often in the data is in only one of the sets."""
    with np.load(run.folder / "samples.npz") as stored:
        often: dict[str, Any] = {name: np.tile(stored[name], (5, 1)) for name in stored.files}
    np.savez(run.folder / "often.npz", **often)
    give(run, path="often.npz")
    calibration, evaluation = sets_of(run, "out")
    assert (len(calibration), len(evaluation)) == (SAMPLES // 2, SAMPLES // 2)
    assert not calibration & evaluation


def test_unstable_function_refused(run: InProcess) -> None:
    """A function that yields other samples every time is refused."""
    code = "import random\ndef samples():\n    for _ in range(400):\n        n = random.randint(1, 30)\n"
    code += "        yield {'ids': [n] * 4, 'mask': [1] * 4}\n"
    (run.folder / "unsteady.py").write_text(code)
    give(run, path="", entry_point="unsteady:samples")
    check_refusal(
        run("lower", "spec.yaml", "--output", "out", "--json"),
        3,
        ("unsteady:samples yields other samples each time", "seed it"),
    )


@pytest.mark.slow
def test_judging_samples_may_calibrate_another(run: InProcess) -> None:
    """What judges one lowering may calibrate another."""
    calibration, evaluation = sets_of(run, "first")
    give(run, seed=1)
    other_calibration, other_evaluation = sets_of(run, "second")
    assert calibration & other_evaluation
    assert evaluation & other_calibration


def judged_by_calibration(record: Record) -> None:
    record["evaluation"] = {**record["calibration"], "labelled": record["evaluation"]["labelled"]}


def one_sample_in_both(record: Record) -> None:
    record["evaluation"]["digests"][3] = record["calibration"]["digests"][0]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "seen"), [(judged_by_calibration, 8), (one_sample_in_both, 1)])
def test_tampered_record_is_caught(change: Callable[[Record], None], seen: int, run: InProcess) -> None:
    """A record that was tampered with lets no sample judge what it calibrated."""
    sets_of(run, "first")
    (path,) = (run.folder / "artifacts" / "cache" / "sample").glob(f"*/{ENTRY_FILE}")
    path.chmod(0o644)
    document = json.loads(path.read_text())
    change(document["record"])
    path.write_text(json.dumps(document))
    noticed = run("lower", "spec.yaml", "--output", "second")
    assert noticed.status == 0, noticed
    assert "is damaged (entry.json): building it again" in noticed.stderr
    document = json.loads(path.read_text())
    change(document["record"])
    files = tuple(FileEntry.model_validate(fields) for fields in document["files"])
    document["digest"] = CacheEntry(path.parent, document["record"], files).digest
    path.chmod(0o644)
    path.write_text(json.dumps(document))
    says = ("validate: ", f"{seen} of the 8 held-out samples were looked at by the lowering already", "--force")
    check_refusal(run("lower", "spec.yaml", "--output", "third", "--json"), 5, says)
    assert not (run.folder / "third").exists()


@pytest.mark.parametrize("calibration", ["minmax", "percentile", "entropy"])
def test_spoiled_scales_refused(calibration: str, run: InProcess) -> None:
    """Scales that a few outliers spoil or clip are measured and refused."""
    lay_out(lint_graphs.cnn(), run.folder, precision="int8")
    noise = np.random.default_rng(2)
    images = noise.normal(size=(64, 3, 12, 12)).astype(np.float32)
    images[::16] *= 1000
    np.savez(run.folder / "samples.npz", image=images)
    give(run, calibration=32, evaluation=32)
    spec = yaml.safe_load((run.folder / "spec.yaml").read_text())
    lowering = {"quantisation": "static", "calibration": calibration, "budget": 0}
    (run.folder / "spec.yaml").write_text(json.dumps({**spec, "lowering": lowering}))
    answer = run("lower", "spec.yaml", "--output", "out", "--json")
    check_refusal(answer, 5, ("lower: none of", "recipes is accurate enough", "output 'logits'"))
