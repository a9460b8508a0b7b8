"""A model that does not fit into memory is refused before it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from plansmith.errors import EnvironmentFault
from plansmith.sources.loaded_model import LIBRARIES_BYTES, TIMES_WEIGHTS, require_memory, weights_bytes
from plansmith.system.memory import usable_memory

if TYPE_CHECKING:
    from pathlib import Path

MEMINFO = "MemTotal: 30000000 kB\nMemFree: 100 kB\nMemAvailable: 20971520 kB\n"


def saved(folder: Path) -> Path:
    save_file(
        {"a": torch.zeros(64, 32, dtype=torch.bfloat16)}, folder / "model-00001-of-00002.safetensors", {"by": "x"}
    )
    save_file({"b": torch.zeros(100), "c": torch.zeros(())}, folder / "model-00002-of-00002.safetensors")
    return folder


def test_fp32_weights_counted_from_headers(tmp_path: Path) -> None:
    """Weights are counted as they are loaded in FP32, from headers alone."""
    assert weights_bytes(saved(tmp_path)) == 4 * (64 * 32 + 100 + 1)


def test_pickles_count_with_their_size(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\0" * 1234)
    assert weights_bytes(tmp_path) == 1234


@pytest.mark.parametrize("damage", [b"", b"\x05\0\0\0\0\0\0\0{", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]"])
def test_damaged_file_left_to_loader(tmp_path: Path, damage: bytes) -> None:
    """A damaged file is left to whoever loads it."""
    (tmp_path / "model.safetensors").write_bytes(damage)
    assert weights_bytes(tmp_path) <= len(damage)


def test_oversized_model_refused_with_room(tmp_path: Path) -> None:
    """A model without room is refused with what it takes and what is left."""
    folder = saved(tmp_path)
    needed = LIBRARIES_BYTES + round(TIMES_WEIGHTS * weights_bytes(folder))
    require_memory(folder, needed)
    with pytest.raises(EnvironmentFault) as caught:
        require_memory(folder, needed - 1)
    assert "the model does not fit into memory: its weights are 8.4 KiB in FP32" in caught.value.message
    assert "more memory" in caught.value.remedy


def test_room_respects_control_group(tmp_path: Path) -> None:
    """Room is what is free and no more than the control group grants."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "cgroup").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    paths = (tmp_path / "meminfo", tmp_path, tmp_path / "cgroup")
    assert usable_memory(*paths) == 20 << 30
    (tmp_path / "job" / "memory.max").write_text(f"{3 << 30}\n")
    assert usable_memory(*paths) == 3 << 30
