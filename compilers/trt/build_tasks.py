"""Tasks of the process that builds plans, with their requests and responses."""

from __future__ import annotations

from pathlib import Path

from plansmith.records.engine import BuildCheck, BuildRequest, BuildSpec, CheckRequest, Gpu, Plan
from plansmith.records.model import Record
from plansmith.system.tasks import Nothing, Task

CHECK_GRAPH = Task("check_graph", CheckRequest, BuildCheck)


class Program(Record):
    """A trtexec, by its path; empty for none, or for TensorRT's Python API."""

    trtexec: str


class Version(Record):
    """A version of TensorRT: in full by its Python package, three numbers by trtexec."""

    version: str


class HoldRequest(Record):
    """A GPU of this machine to hold alone until the worker ends.

    Attributes:
        gpu: the GPU.
        wait: whether to wait for the process that holds it.
    """

    gpu: Gpu
    wait: bool


class HoldResponse(Record):
    """Whether the worker holds the GPU, and else the process that does, where that is known."""

    held: bool
    holder: int | None


class CombineRequest(Record):
    """Timing caches to make one of.

    Attributes:
        files: the caches.
        out: the file to write.
    """

    files: tuple[Path, ...]
    out: Path


class CombineResponse(Record):
    """Whether TensorRT took them all."""

    combined: bool


class BuildResponse(Record):
    """A plan that was built.

    Attributes:
        plan: its record.
        peak_host_bytes: the most memory that the worker held.
        command: the command line of a program that built it; empty for the Python API.
    """

    plan: Plan
    peak_host_bytes: int | None
    command: tuple[str, ...]


class RefitRequest(Record):
    """A stripped plan to put the weights of its graph back into.

    Attributes:
        plan: the stripped plan.
        graph: the ONNX file, its weights beside it.
        out: the file to write.
        spec: what the plan was built with.
    """

    plan: Path
    graph: Path
    out: Path
    spec: BuildSpec


FIND_TRTEXEC = Task("find_trtexec", Nothing, Program)
TENSORRT_VERSION = Task("tensorrt_version", Program, Version)
HOLD = Task("hold", HoldRequest, HoldResponse)
COMBINE = Task("combine", CombineRequest, CombineResponse)
BUILD = Task("build", BuildRequest, BuildResponse)
REFIT = Task("refit", RefitRequest, Nothing)
