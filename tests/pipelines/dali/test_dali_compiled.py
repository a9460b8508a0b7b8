"""`preprocessing: dali` in a spec is refused at once where the target has none, or not what is asked of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ...support.cli.command import CommandLine

pytestmark = pytest.mark.slow

SPEC: dict[str, Any] = {
    "source": "timm:test_resnet",
    "name": "tiny",
    "random_weights": True,
    "shapes": {"pixel_values": "1x3x160x160:2x3x160x160:4x3x160x160"},
    "pipeline": {"input": "image", "output": "labels", "preprocessing": "dali", "top_k": 2},
}


@pytest.fixture
def run(run_alone: CommandLine) -> CommandLine:
    """A folder with a spec, and the same with memory for the decoder."""
    memory = {**SPEC["pipeline"], "dali": {"device_memory_padding": "32M", "num_threads": 2}}
    for name, values in {"spec": SPEC, "memory": {**SPEC, "pipeline": memory}}.items():
        (run_alone.folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return run_alone


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        pytest.param(("spec.yaml", "--target", "triton-26.03-cpu"), 6, "which DALI triton-26.03-cpu has", id="unknown"),
        pytest.param(("spec.yaml",), 9, "plansmith serve-env add local-cpu --dali", id="not installed"),
        pytest.param(
            ("spec.yaml", "--target", "sagemaker-25.04-cpu"),
            9,
            "plansmith serve-env add sagemaker-25.04-cpu --dali",
            id="that of a container not installed",
        ),
        pytest.param(
            ("memory.yaml",),
            2,
            "device_memory_padding under `pipeline: dali`, which a decoder on a GPU has",
            id="memory",
        ),
        pytest.param(("memory.yaml", "--target", "triton-26.08"), 9, "add triton-26.08 --dali", id="memory of a GPU"),
    ],
)
def test_missing_dali_begins_nothing(words: tuple[str, ...], status: int, says: str, run: CommandLine) -> None:
    """Without what is asked of DALI, nothing is begun."""
    refused = run("compile", *words, "--repository", "repository", PLANSMITH_SERVE_ENV="empty")
    assert refused.status == status
    assert says in refused.message
    assert ("preprocessing: python" in refused.message) == (status != 2)
    assert not (run.folder / "repository").exists()
