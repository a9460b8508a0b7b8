"""SageMaker's front end takes copies, and random invocations evict the least recently used."""

from __future__ import annotations

from collections import Counter

import pytest

from plansmith.capacity.measurement import Popularity

from ..support.cli.command import check_refusal
from ..support.cli.in_process import InProcess


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("capacity")
@pytest.mark.parametrize("options", [(), ("--sagemaker",)], ids=["triton", "front-end"])
def test_random_invocations_evict(command: InProcess, options: tuple[str, ...]) -> None:
    """Invocations of more models than are loaded unload the least recently used, on both kinds of servers."""
    arguments = ("--max-copies", "2", "--invocations", "6", "--models", "4", "--seed", "1")
    report = command.document("capacity", "onnx", *options, *arguments)
    assert report["server"].startswith("SageMaker's front end" if options else "Triton")
    assert (len(report["copies"]), report["answers_ms"]["count"], report["unload_seconds"]["count"]) == (2, 2, 2)
    eviction = report["eviction"]
    loaded, hits = [1, 2], 0
    for model in Popularity().sequence(4, 6, 1):
        hits += model in loaded
        loaded = [*(name for name in loaded if name != model), model][-2:]
    assert (eviction["hits"], eviction["misses"], eviction["errors"]) == (hits, 6 - hits, 0)
    assert eviction["evictions"] == eviction["misses"] == eviction["miss_ms"]["count"] > 0


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("capacity")
def test_front_end_refusal_is_result(command: InProcess) -> None:
    """A copy that the front end does not load ends the loading with the status and reason of the answer."""
    report = command.document("capacity", "faulty", "--sagemaker")
    assert (len(report["copies"]), report["ending"], report["answers_ms"]["count"]) == (2, "load-failed", 2)
    assert "no weights" in report["reason"]
    check_refusal(command("capacity", "script", "--sagemaker", "--json"), 7, ("script",))


def test_popularity_decides_invocations() -> None:
    """Zipf's law prefers some models, and the same seed draws the same ones."""
    zipf, uniform = Popularity.read("zipf:1.5"), Popularity.read("uniform")
    assert str(zipf) == "zipf:1.5"
    assert zipf.sequence(20, 300, 7) == zipf.sequence(20, 300, 7) != zipf.sequence(20, 300, 8)
    most = [Counter(law.sequence(20, 300, 7)).most_common(1)[0][1] for law in (zipf, uniform)]
    assert most[0] > 100
    assert most[1] < 40
