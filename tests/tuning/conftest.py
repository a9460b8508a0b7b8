"""A small model with a spec, for the tests of searches on a real Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.models.graphs import save_product
from ..support.triton.installed import installation, site

__all__ = ["installation", "net", "site"]

SPEC = """\
source: onnx:net.onnx
name: net
artifacts: artifacts
shapes:
  x: 1x3x64:2x3x64:8x3x64
triton:
  max_batch_size: 4
  dynamic_batching: {max_queue_delay_microseconds: 300000, preserve_ordering: true}
  parameters: {enable_mem_pattern: "true"}
  instance_group: [{name: own, count: 1}]
"""
"""Its batcher waits for a batch that few users never fill: almost any other configuration is better."""


SPACE = (
    *("--engines", "onnxruntime", "--precisions", "fp32", "--max-batch-sizes", "1,4", "--delays", "0"),
    *("--instances", "1,2", "--threads", "1", "--preferred", "none"),
)
SEARCH = (*SPACE, "--budget", "14", "--seconds", "1", "--users", "3")
"""Options of a short search of few configurations."""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """The spec of a product with a fixed matrix."""
    return write_net(tmp_path)


def write_net(folder: Path) -> Path:
    """The model and its spec in a folder."""
    save_product(folder)
    spec = folder / "net.yaml"
    spec.write_text(SPEC)
    return spec
