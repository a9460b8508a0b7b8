"""Releases for SageMaker, small ones: a model of ONNX Runtime, an ensemble, a script, plans, a program of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind
from plansmith.records.release import MODEL_FOLDER, Manifest, PublishedVersion
from plansmith.triton.config.model_config import text_of
from plansmith.triton.config.plan_config import make_plan_config, plan_package
from plansmith.triton.repository.repository import ModelRepository

from ..faults.packages import draft_of
from ..tensorrt.plan_files import plan
from ..triton import versions
from ..triton.pipelines import publish_draft, write_pipeline
from ..triton.scripted import write_scripted

TARGET = "sagemaker-26.05-cpu"


def publish_onnx(
    repository: ModelRepository,
    folder: Path,
    model: str,
    *,
    target: str = TARGET,
    changes: Mapping[str, str] | None = None,
) -> PublishedVersion:
    """Publish the next version of a model that answers the number of its version.

    Args:
        repository: takes it.
        folder: takes the files that it is made of.
        model: its name.
        target: what it is made for.
        changes: in the text of its configuration.
    """
    number = _next_number(repository, model)
    package = folder / f"{model}-{number}"
    _write(package, _changed(versions.CONFIG, changes), {"model.onnx": versions.graph(number)})
    draft = _with_package(draft_of(package, model=model, target=target), ("model.onnx",))
    return publish_draft(repository, package, draft)


def _changed(text: str, changes: Mapping[str, str] | None) -> str:
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    return text


def publish_python(
    repository: ModelRepository,
    folder: Path,
    model: str,
    code: str,
    *,
    target: str = TARGET,
    gpu_target: str = "",
    changes: Mapping[str, str] | None = None,
) -> PublishedVersion:
    """Publish a program, of `x` to `three` and `whole` like the other models here.

    Args:
        repository: takes it.
        folder: takes the files that it is made of.
        model: its name.
        code: of its model.py.
        target: what it is made for, on its CPU.
        gpu_target: what it is made for, with instances on GPUs; on the CPU of `target` when left out.
        changes: in the text of its configuration.
    """
    package = folder / f"{model}-{_next_number(repository, model)}"
    config = _changed(versions.CONFIG, changes).replace('"onnxruntime"', '"python"').replace("model.onnx", "model.py")
    _write(package, config.replace("KIND_CPU", "KIND_GPU") if gpu_target else config, {"model.py": code.encode()})
    draft = _with_package(draft_of(package, model=model, target=gpu_target or target), ("model.py",))
    if gpu_target:
        draft = draft.model_copy(update={"engine": draft.engine.model_copy(update={"kind": EngineKind.PYTHON})})
    return publish_draft(repository, package, draft)


def publish_ensemble(
    repository: ModelRepository, folder: Path, model: str, *, script: bool = False, target: str = TARGET
) -> PublishedVersion:
    """Publish an ensemble of two programs, or a script that asks them; it answers the number of its version."""
    number = _next_number(repository, model)
    package = folder / f"{model}-{number}"
    draft = (write_scripted if script else write_pipeline)(package, number, model=model)
    return publish_draft(repository, package, draft.model_copy(update={"target": target}))


def publish_plans(
    repository: ModelRepository, folder: Path, model: str, engine: Engine, *, version: str, target: str
) -> PublishedVersion:
    """Publish plans that their headers say to be of a version of TensorRT."""
    package_plan = plan_package(model, engine)
    package = folder / f"{model}-{_next_number(repository, model)}"
    _write(
        package,
        text_of(make_plan_config(package_plan, engine, "gpu")),
        dict.fromkeys(package_plan.model_files, plan(version)),
    )
    draft = draft_of(package, model=model, target=target).model_copy(update={"engine": engine, "package": package_plan})
    return publish_draft(repository, package, draft)


def _write(package: Path, config: str, files: Mapping[str, bytes]) -> None:
    (package / MODEL_FOLDER).mkdir(parents=True)
    (package / "config.pbtxt").write_text(config)
    for name, content in files.items():
        (package / MODEL_FOLDER / name).write_bytes(content)


def _with_package(draft: Manifest, files: tuple[str, ...]) -> Manifest:
    fields: dict[str, Any] = {"model_files": files, "interface": versions.INTERFACE, "max_batch_size": 8}
    return draft.model_copy(update={"package": draft.package.model_copy(update=fields)})


def _next_number(repository: ModelRepository, model: str) -> int:
    return max([0, *repository.versions(model)]) + 1
