"""A GPU is found by the names that drivers, people and clouds have for it."""

from __future__ import annotations

import pytest

from plansmith.errors import UsageError
from plansmith.records.engine import Gpu
from plansmith.system.gpu_catalog import find_kind, is_kind, kind_names, kind_of, takes_newer_cuda

GIB = 2**30


def make_gpu(name: str, compute_capability: str, gib: int = 40) -> Gpu:
    """A GPU as NVML tells of it."""
    return Gpu(
        name=name,
        compute_capability=compute_capability,
        memory_bytes=gib * GIB,
        uuid="GPU-1",
        index=0,
        driver="595.58.03",
    )


@pytest.mark.parametrize("name", kind_names())
def test_kind_found_by_driver_name(name: str) -> None:
    """Every kind is found by the driver's name, in any writing."""
    kind = find_kind(name)
    assert kind.name == name
    assert (kind.uuid, kind.index, kind.driver) == ("", -1, "")
    for written in (name.upper(), name.lower(), name.replace(" ", "-"), name.removeprefix("NVIDIA ")):
        assert find_kind(written) == kind
    major, minor = map(int, kind.compute_capability.split("."))
    assert (7, 5) <= (major, minor) <= (12, 0)
    assert 6 * GIB <= kind.memory_bytes <= 192 * GIB


def test_names_are_there_once() -> None:
    assert len({name.lower() for name in kind_names()}) == len(kind_names()) >= 40


@pytest.mark.parametrize(
    ("text", "name", "compute_capability"),
    [
        ("T4", "Tesla T4", "7.5"),
        ("nvidia t4", "Tesla T4", "7.5"),
        ("a10g", "NVIDIA A10G", "8.6"),
        ("A10", "NVIDIA A10", "8.6"),
        ("a100-pcie-80gb", "NVIDIA A100 80GB PCIe", "8.0"),
        ("L4", "NVIDIA L4", "8.9"),
        ("L40S", "NVIDIA L40S", "8.9"),
        ("H100-SXM", "NVIDIA H100 80GB HBM3", "9.0"),
        ("B200", "NVIDIA B200", "10.0"),
        ("rtx4090", "NVIDIA GeForce RTX 4090", "8.9"),
        ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("RTX 6000", "Quadro RTX 6000", "7.5"),
        ("g5", "NVIDIA A10G", "8.6"),
        ("ml.g6e.2xlarge", "NVIDIA L40S", "8.9"),
        ("g4dn.xlarge", "Tesla T4", "7.5"),
        ("p4de", "NVIDIA A100-SXM4-80GB", "8.0"),
        ("a3-highgpu", "NVIDIA H100 80GB HBM3", "9.0"),
    ],
)
def test_short_and_cloud_names_understood(text: str, name: str, compute_capability: str) -> None:
    """Short names and cloud instances mean a kind."""
    kind = find_kind(text)
    assert (kind.name, kind.compute_capability) == (name, compute_capability)


def test_ambiguous_name_means_present_gpu() -> None:
    """A name of several kinds means the one that is here."""
    big, small = make_gpu("NVIDIA A100 80GB PCIe", "8.0", 80), make_gpu("NVIDIA L4", "8.9", 24)
    assert find_kind("A100", [small, big]).name == big.name
    assert find_kind("A100-SXM4-40GB", [big]).name == "NVIDIA A100-SXM4-40GB"
    with pytest.raises(UsageError):
        find_kind("A100", [small])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "A100",
            "NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-80GB, NVIDIA A100-PCIE-40GB or NVIDIA A100 80GB PCIe",
        ),
        ("h100", "NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe or NVIDIA H100 NVL"),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB or NVIDIA A100 80GB PCIe"),
    ],
)
def test_ambiguous_name_refused_with_kinds(text: str, names: str) -> None:
    """A name of several kinds is refused, with theirs, where none is here."""
    with pytest.raises(UsageError, match=f"{text}.* none is in this machine") as refused:
        find_kind(text)
    assert refused.value.remedy == f"write {names}"


def test_present_gpu_needs_no_table() -> None:
    """A GPU that is here needs no place in the table."""
    new = make_gpu("NVIDIA Z900", "12.0")
    assert find_kind("z900", [new]) == Gpu(name="NVIDIA Z900", compute_capability="12.0", memory_bytes=40 * GIB)
    with pytest.raises(UsageError):
        find_kind("z900")


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("My GPU=8.9:24G", Gpu(name="My GPU", compute_capability="8.9", memory_bytes=24 * GIB)),
        (
            "A100 MIG 3g.20gb = 8.0 : 20096MiB",
            Gpu(name="A100 MIG 3g.20gb", compute_capability="8.0", memory_bytes=20096 * 2**20),
        ),
        ("L4=8.9:23g", Gpu(name="L4", compute_capability="8.9", memory_bytes=23 * GIB)),
    ],
)
def test_untabled_gpu_described(text: str, gpu: Gpu) -> None:
    """What is not in the table is described."""
    assert find_kind(text) == gpu


@pytest.mark.parametrize(
    ("text", "near"), [("A10O", "A10"), ("RTX 4091", "RTX 4090"), ("H1000", "H100"), ("RTX 409O", "RTX 4090")]
)
def test_mistyped_name_suggests_near_ones(text: str, near: str) -> None:
    """A mistyped name is answered with near ones."""
    with pytest.raises(UsageError, match=text) as refused:
        find_kind(text)
    assert near in refused.value.remedy


@pytest.mark.parametrize(
    "text", ["", "   ", "GPU", "My GPU=8.9", "=8.9:24G", "My GPU=sm89:24G", "My GPU=8.9:0G", "x=y"]
)
def test_invalid_gpu_refused_with_forms(text: str) -> None:
    """What is no GPU is refused with both ways to name one."""
    with pytest.raises(UsageError, match="is no ") as refused:
        find_kind(text)
    assert '"My GPU=8.9:24G"' in refused.value.remedy


def test_kind_same_on_every_driver() -> None:
    """The kind of a GPU is the same on every driver."""
    assert kind_of(make_gpu("A10G", "8.6", 22)) == kind_of(make_gpu("NVIDIA A10G", "8.6", 24)) == find_kind("A10G")
    assert kind_of(make_gpu("NVIDIA Z900", "12.0")).uuid == ""


def test_kind_by_name_and_capability() -> None:
    """A GPU is of a kind by its name and its compute capability."""
    assert is_kind(make_gpu("NVIDIA L4", "8.9"), find_kind("L4"))
    assert not is_kind(make_gpu("NVIDIA L40S", "8.9"), find_kind("L4"))
    assert not is_kind(make_gpu("NVIDIA L4", "9.9"), find_kind("L4"))


def test_newer_cuda_needs_data_centre() -> None:
    """Newer CUDA on an older driver is for data centres."""
    assert takes_newer_cuda(find_kind("T4")) is True
    assert takes_newer_cuda(find_kind("RTX 4090")) is False
    assert takes_newer_cuda(find_kind("RTX A6000")) is None
    assert takes_newer_cuda(make_gpu("NVIDIA Z900", "12.0")) is None
