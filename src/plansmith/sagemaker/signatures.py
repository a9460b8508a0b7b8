"""What a model behind an endpoint takes, from its release, its archive or a file: SageMaker does not tell."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plansmith.config.messages import validation_message
from plansmith.errors import UsageError, first_line
from plansmith.records.model import ANONYMOUS, BATCH, Tensor
from plansmith.records.release import CONFIG_FILE, Manifest
from plansmith.triton.checker.reader import as_python_reads
from plansmith.triton.client import Signature
from plansmith.triton.client.dtypes import CONFIG_TYPES
from plansmith.triton.client.signature import completed_signature, signature_from_config, signature_from_package
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.repository import ModelRepository

_MAX_CONFIG_BYTES = 2**20
_MAX_DIM = 2**31 - 1
_ENSEMBLE = "ensemble"
_FORM = 'write {"inputs": [{"name": …, "dtype": "float32", "dims": ["batch", 3]}], "outputs": […], "max_batch_size": 8}'


@dataclass(frozen=True)
class ServedModel:
    """A model that an endpoint serves, as far as it is known here.

    Attributes:
        name: of the model.
        signature: what it takes and answers.
        axis_sizes: the usual size of each axis by name, as far as known.
        manifest: of its release, where that is known.
        folder: of the release, where it is at hand.
    """

    name: str
    signature: Signature
    axis_sizes: Mapping[str, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    folder: Path | None = None


def model_from_release(repository: ModelRepository, release: str) -> ServedModel:
    """The model of a release, MODEL[@VERSION].

    Raises:
        RepositoryError: the repository has no such release, or a damaged one.
    """
    model, number = repository.find(release)
    return _model_from_manifest(repository.manifest(model, number), repository.release(model, number))


def model_from_file(path: Path) -> ServedModel:
    """The model that a file describes: the manifest of a release, a config.pbtxt, or a `Signature` as JSON.

    Raises:
        UsageError: the file cannot be read, or is none of these.
    """
    text = _read_text(path)
    if path.suffix == ".pbtxt":
        return _model_from_config(text, str(path), path.absolute().parent.name)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no JSON: {first_line(error)}", remedy=f"{_FORM}; or name a config.pbtxt"
        ) from error
    is_manifest = isinstance(document, dict) and "package" in document
    try:
        if is_manifest:
            return _model_from_manifest(Manifest.model_validate(document), path.absolute().parent)
        signature = _with_anonymous_dims(Signature.model_validate(document))
    except ValidationError as error:
        kind = "manifest of a release" if is_manifest else "signature"
        lines = [f"  {'.'.join(map(str, one['loc'])) or 'it'}: {validation_message(one)}" for one in error.errors()]
        raise UsageError("\n".join([f"{path} is no {kind}:", *lines]), remedy=_FORM) from None
    problems = list(_signature_problems(signature))
    if problems:
        raise UsageError("\n".join([f"{path} is no signature:", *problems]), remedy=_FORM)
    return ServedModel(path.stem, signature)


def model_from_archive(path: Path, name: str = "") -> ServedModel:
    """The model that an endpoint serves of an archive.

    Args:
        path: of the archive, a .tar.gz.
        name: of the model; when empty, the only one, or the only ensemble.

    Raises:
        UsageError: the archive cannot be read, or does not tell which model is meant.
    """
    configs = _read_configs(path)
    if name and name not in configs:
        raise UsageError(
            f"{path} holds no model {name!r}", remedy=f"name one of its models: {', '.join(sorted(configs))}"
        )
    ensembles = [model for model, text in configs.items() if _parse(text, f"{path}: {model}").platform == _ENSEMBLE]
    candidates = [name] if name else list(configs) if len(configs) == 1 else ensembles
    if len(candidates) != 1:
        raise UsageError(
            f"{path} holds several models: {', '.join(sorted(configs))}",
            remedy="name the one that the endpoint serves: --model NAME",
        )
    return _model_from_config(configs[candidates[0]], f"{path}: {candidates[0]}/{CONFIG_FILE}", candidates[0])


def _model_from_manifest(manifest: Manifest, folder: Path) -> ServedModel:
    """The model of a release; the configuration tells a little more, and a manifest may lie alone."""
    signature, config = signature_from_package(manifest.package), folder / CONFIG_FILE
    axis_sizes = {axis: sizes.opt for axis, sizes in manifest.onnx.axes.items()}
    if not config.is_file():
        return ServedModel(manifest.name, signature, axis_sizes, manifest)
    signature = completed_signature(signature, _parse(_read_text(config), str(config)))
    return ServedModel(manifest.name, signature, axis_sizes, manifest, folder)


def _model_from_config(text: str, place: str, folder_name: str) -> ServedModel:
    config = _parse(text, place)
    if not config.input or not config.output:
        raise UsageError(
            f"{place} does not tell inputs and outputs, which Triton completes when it loads the model",
            remedy=f"name the model's release, or a JSON file (--interface): {_FORM}",
        )
    return ServedModel(config.name or folder_name, signature_from_config(config))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}", remedy="name a file that is there and readable") from error


def _parse(text: str, place: str) -> Any:
    from google.protobuf.text_format import ParseError

    try:
        return parse_config(as_python_reads(text))
    except (ParseError, ValueError) as error:
        raise UsageError(
            f"{place} is no configuration that Triton reads: {first_line(error)}", remedy="plansmith check tells more"
        ) from error


def _with_anonymous_dims(signature: Signature) -> Signature:
    """A signature that a person wrote, in which -1 is a free dim, as Triton writes it."""

    def rename(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            tensor.model_copy(update={"dims": tuple(ANONYMOUS if dim == -1 else dim for dim in tensor.dims)})
            for tensor in tensors
        )

    return signature.model_copy(update={"inputs": rename(signature.inputs), "outputs": rename(signature.outputs)})


def _signature_problems(signature: Signature) -> Iterator[str]:
    """What no signature can have, a line each."""
    if signature.max_batch_size < 0:
        yield f"  max_batch_size: {signature.max_batch_size} is no number of samples"
    for tensors in (signature.inputs, signature.outputs):
        names = [tensor.name for tensor in tensors]
        yield from (f"  {name}: the name is used twice" for name in sorted(set(names)) if names.count(name) > 1)
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.dtype not in CONFIG_TYPES:
            yield f"  {tensor.name}: {tensor.dtype!r} is no dtype: choose from {', '.join(CONFIG_TYPES)}"
        if not tensor.name.isprintable():
            yield f"  {tensor.name!r}: no such name can be sent"
        for dim in tensor.dims:
            if isinstance(dim, int) and not 0 < dim <= _MAX_DIM:
                yield f"  {tensor.name}: {dim} is no size of a dim; -1 is one that is free"
        if signature.max_batch_size and tensor.dims[:1] != (BATCH,):
            yield f"  {tensor.name}: its first dim must be {BATCH!r}, as max_batch_size is {signature.max_batch_size}"


def _read_configs(path: Path) -> dict[str, str]:
    """The configurations of the models in an archive, by the folders in its root; nothing is unpacked.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    configs = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                parts = Path(entry.name).parts
                if len(parts) == 2 and parts[1] == CONFIG_FILE and entry.isfile() and entry.size <= _MAX_CONFIG_BYTES:
                    content = archive.extractfile(entry)
                    assert content is not None
                    configs[parts[0]] = content.read().decode()
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}", remedy="name a .tar.gz archive") from error
    if not configs:
        raise UsageError(
            f"{path} holds no model: no folder of its root has a {CONFIG_FILE}",
            remedy="name an archive of plansmith sagemaker package",
        )
    return configs
