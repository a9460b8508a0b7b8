"""Serving runtimes and their versions, read from the data in configs/targets."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from pydantic import ConfigDict

from plansmith.errors import EngineError
from plansmith.types import Record

DEFAULT_TARGET = "local-cpu"


class Target(Record):
    """The runtime that a release will be served by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str
    flavour: Literal["triton", "sagemaker"]
    onnxruntime: str
    max_opset: int
    max_ir_version: int
    device: Literal["cpu", "gpu"]


def load_target(name: str) -> Target:
    """The target of a name.

    Raises:
        EngineError: there is no such target.
    """
    import yaml

    known = target_names()
    if name not in known:
        raise EngineError(f"there is no target {name!r}", remedy=f"choose one of: {', '.join(known)}")
    text = (files("plansmith") / "configs" / "targets" / f"{name}.yaml").read_text(encoding="utf-8")
    return Target(name=name, **yaml.safe_load(text))


def target_names() -> list[str]:
    """All targets that plansmith knows, sorted."""
    folder = files("plansmith") / "configs" / "targets"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
