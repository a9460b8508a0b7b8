"""Requests of raw inputs in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from plansmith.pipelines.cases import read_case, write_case

from ..support.pipelines.columns import column


def test_cases_round_trip_byte_for_byte(tmp_path: Path) -> None:
    """What is written comes back byte for byte."""
    feed = {"text": column(b"", "naïve 🙂".encode(), b"\x00\xff\x00"), "image": column(b"\xff\xd8\x00\x00", b"x", b"")}
    answer = {"score": np.array([[0.5], [0.25], [0.0]], np.float32), "label": column(b"a, b", b"", b"c")}
    write_case(tmp_path / "folder" / "case.npz", feed, answer)
    request, owed = read_case(tmp_path / "folder" / "case.npz")
    for written, read in ((feed, request), (answer, owed)):
        assert list(written) == list(read)
        for name, array in written.items():
            assert read[name].dtype == array.dtype
            assert read[name].tolist() == array.tolist()


def test_output_may_share_input_name(tmp_path: Path) -> None:
    """An output may be called like an input."""
    write_case(tmp_path / "case.npz", {"text": column(b"in")}, {"text": column(b"out")})
    request, owed = read_case(tmp_path / "case.npz")
    assert (request["text"].item(), owed["text"].item()) == (b"in", b"out")


def test_a_file_needs_no_pickle(tmp_path: Path) -> None:
    write_case(tmp_path / "case.npz", {"text": column(b"in")}, {"text": column(b"out")})
    with np.load(tmp_path / "case.npz", allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)
