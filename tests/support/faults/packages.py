"""Tiny packages with real records, and their publication: milliseconds of work, no model in them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from plansmith.records.engine import Engine
from plansmith.records.model import (
    AxisRange,
    Component,
    EngineKind,
    FileEntry,
    OnnxModel,
    Precision,
    ReferenceSet,
    SourceModel,
    Tensor,
)
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import MODEL_FOLDER, Interface, Manifest, Member, Package, PublishedVersion
from plansmith.records.validation import ValidationReport
from plansmith.system.digest import digest_of_files
from plansmith.triton.repository.repository import ModelRepository, Servers

MODEL = "tiny"
TARGET = "local-cpu"
OUTPUT = "logits"
CREATED = "2026-01-01T00:00:00.000+00:00"


def write_package(folder: Path, content: str) -> Path:
    """The files of a release, all of them different for different contents."""
    for name in ("config.pbtxt", f"{MODEL_FOLDER}/model.onnx", f"{MODEL_FOLDER}/weights/model.onnx.data"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} of {content}")
    return folder


def write_ensemble(folder: Path, content: str) -> Manifest:
    """The files of a release with two parts, of which one is the same in all; the draft of its manifest."""
    shutil.rmtree(folder, ignore_errors=True)  # a release may have links to its files
    write_package(folder, content)
    members = (_write_part(folder, "tokens", "any"), _write_part(folder, MODEL_PART, content))
    (folder / "config.pbtxt").write_text(f"config.pbtxt of {content}, which asks {[part.model for part in members]}")
    draft = draft_of(folder)
    return draft.model_copy(update={"package": draft.package.model_copy(update={"members": members})})


def _write_part(package: Path, part: str, content: str) -> Member:
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    folder = package / "members" / part
    for name in ("config.pbtxt", "labels.txt", f"{MODEL_FOLDER}/model.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of {content}")
    return Member(
        model=f"{MODEL}.{part}.{digest}",
        part=part,
        folder=f"members/{part}",
        backend="python",
        model_files=("model.py",),
        support_files=("labels.txt",),
        max_batch_size=32,
        interface=Interface(inputs=(), outputs=()),
    )


def file_entries(folder: Path) -> tuple[FileEntry, ...]:
    """Path, size and digest of everything below a folder, read afresh."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return tuple(
        FileEntry(
            path=p.relative_to(folder).as_posix(),
            bytes=p.stat().st_size,
            sha256=hashlib.sha256(p.read_bytes()).hexdigest(),
        )
        for p in files
    )


def draft_of(package: Path, *, model: str = MODEL, target: str = TARGET, output: str = OUTPUT) -> Manifest:
    """A manifest without a number for a package."""
    files = file_entries(package)
    interface = Interface(
        inputs=(Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence")),),
        outputs=(Tensor(name=output, dtype="float32", dims=("batch", 2)),),
    )
    component = Component(
        file="model.onnx",
        external_files=("weights/model.onnx.data",),
        inputs=interface.inputs,
        outputs=interface.outputs,
        opset=18,
        ir_version=10,
    )
    return Manifest(
        name=model,
        version=0,
        created=CREATED,
        plansmith="0",
        target=target,
        release_digest=digest_of_files(files),
        spec={"source": "hf:./tiny"},
        source=SourceModel(
            scheme="hf",
            location="./tiny",
            revision=None,
            licence=None,
            digest="0",
            random_weights=True,
            trust_remote_code=False,
        ),
        onnx=OnnxModel(
            components={"model": component},
            axes={"batch": AxisRange(min=1, opt=8, max=32)},
            mask_input=None,
            exporter="torchscript",
            attempts=(),
            precision=Precision.FP32,
            reference=ReferenceSet(runtime="none", data="none", cases=()),
        ),
        engine=Engine(
            kind=EngineKind.ONNXRUNTIME,
            components={"model": component},
            precision=Precision.FP32,
            options={},
            toolchain={},
        ),
        package=Package(
            model=model,
            config_file="config.pbtxt",
            model_files=(component.file, *component.external_files),
            max_batch_size=32,
            interface=interface,
        ),
        validation=ValidationReport(
            verdict="passed", reference="none", candidate="none", data="none", tolerances={}, comparisons=()
        ),
        served=None,
        files=files,
        steps=(),
    )


def source_model(**values: Any) -> SourceModel:
    """The source in a manifest; values take the place of the usual ones."""
    usual = {"revision": None, "licence": None, "digest": "0", "random_weights": False, "trust_remote_code": False}
    return SourceModel.model_validate(usual | values)


def publish(
    root: Path,
    package: Path,
    draft: Manifest,
    *,
    allow_interface_change: bool = False,
    servers: Servers | None = None,
) -> PublishedVersion:
    """Publish a package as a compile would."""
    return ModelRepository(root).publish(
        draft,
        {entry.path: package / entry.path for entry in draft.files},
        {"spec.yaml": "source: hf:./tiny\n", "build.log": f"built {package.name}\n"},
        allow_interface_change=allow_interface_change,
        force=False,
        servers=servers,
    )
