"""Releases of plans in a repository, as plansmith would have made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plansmith.records.release import Manifest
from plansmith.triton.config.model_config import text_of
from plansmith.triton.config.plan_config import make_plan_config, plan_package

from ..tensorrt.engines import engine
from ..tensorrt.plan_files import plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plansmith.records.engine import Engine

    from .written import Written

BUILT = "10.16.0.72"


def manifest_of(of: Engine, name: str = "m") -> Manifest:
    """What a manifest says of an engine and its package; nothing else of it."""
    return Manifest.model_construct(engine=of, package=plan_package(name, of))


def release(
    written: Written,
    of: Engine | None = None,
    *,
    changes: Mapping[str, str] | None = None,
    told: Engine | None = None,
    version: str = BUILT,
    name: str = "m",
) -> dict[str, Manifest]:
    """Put a model of plans into a repository, with a configuration of ours.

    Args:
        written: the repository.
        of: the plans.
        changes: in the text of the configuration.
        told: what the manifest says of the plans instead.
        version: of TensorRT, which their headers say.
        name: of the model.

    Returns:
        The manifest of its version 1, by name.
    """
    of = of or engine()
    manifest = manifest_of(of, name)
    text = text_of(make_plan_config(manifest.package, of, "gpu"))
    for old, new in (changes or {}).items():
        assert old in text, (old, text)
        text = text.replace(old, new)
    files: dict[str, bytes | str] = {f"1/{file}": plan(version) for file in manifest.package.model_files}
    written.add(name, text, files)
    return {name: manifest_of(told, name) if told is not None else manifest}


def foreign(written: Written, config: str, files: Mapping[str, Any] | None = None, name: str = "m") -> None:
    """Put a model of plans that somebody else made into a repository."""
    contents: dict[str, bytes | str] = dict(files if files is not None else {"1/model.plan": plan(BUILT)})
    written.add(name, config, contents)
