"""An ensemble and its members: configurations, and names that say what the members hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.digest import Digester, digest_of
from plansmith.durable import link_or_copy
from plansmith.errors import EngineError
from plansmith.manifest import CONFIG_FILE, MODEL_FOLDER, Interface, Member, Package
from plansmith.packed import PackedEnvironment
from plansmith.parts import MODEL_PART, Part, Pipeline
from plansmith.triton.model_config import data_type, parse_config, text_of
from plansmith.triton_options.serving import VersionPolicy
from plansmith.types import Device, Tensor

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

MEMBERS_FOLDER = "members"
PIPELINE_FILE = "pipeline.json"
_DIGEST_LETTERS = 8

Bring = Callable[[str, "pb.ModelConfig", Path], PackedEnvironment | None]
"""Puts the environment of a part into a folder and names it in a configuration; None where the part brings none."""


def member_folder(part: str) -> str:
    """Where a member of a part lies in a release."""
    return f"{MEMBERS_FOLDER}/{part}"


def write_ensemble(
    model: Package,
    backend: str,
    pipeline: Pipeline,
    parts: Path,
    out: Path,
    *,
    device: Device,
    digester: Digester,
    policy: VersionPolicy | None,
    bring: Bring,
) -> Package:
    """Put a model that lies in its member's folder, and the parts around it, together to one release.

    Args:
        model: as a release of its own under the ensemble's name; its files lie in `out / member_folder(MODEL_PART)`.
        backend: Triton's name of what serves it.
        pipeline: what stands around it.
        parts: the pipeline's folder, with a folder for each part.
        out: the release's folder.
        device: what the target's instances run on.
        digester: hashes files.
        policy: which versions of the ensemble Triton serves; the newest one when None.
        bring: puts what a part brings with it beside its configuration.

    Raises:
        EngineError: the model does not batch.
        EnvironmentFault: an environment cannot be packed.
    """
    if not model.max_batch_size:
        raise EngineError(
            "a pipeline joins the samples of several requests, and the model has no batch axis that moves",
            remedy="leave `pipeline` out of the spec, or give shapes with a batch that moves",
        )
    write = partial(_write_part, model, parts=parts, out=out, device=device, digester=digester, bring=bring)
    members = [
        *(write(part) for part in pipeline.before),
        _name_model(model, backend, out, digester),
        *(write(part) for part in pipeline.after),
    ]
    config = _ensemble(model, pipeline, members, policy)
    (out / CONFIG_FILE).write_text(text_of(config))
    told = {
        "input": pipeline.input,
        "output": pipeline.output,
        "parts": [{"part": member.part, "model": member.model} for member in members],
    }
    (out / MODEL_FOLDER).mkdir()
    (out / MODEL_FOLDER / PIPELINE_FILE).write_text(json.dumps(told, indent=1) + "\n")
    return Package(
        model=model.model,
        config_file=CONFIG_FILE,
        model_files=(PIPELINE_FILE,),
        max_batch_size=model.max_batch_size,
        interface=Interface(inputs=pipeline.inputs, outputs=pipeline.outputs),
        server_arguments=model.server_arguments,
        members=tuple(members),
    )


def _write_part(
    model: Package, part: Part, *, parts: Path, out: Path, device: Device, digester: Digester, bring: Bring
) -> Member:
    folder = out / member_folder(part.name)
    for file in part.files:
        link_or_copy(parts / part.name / file, folder / MODEL_FOLDER / file)
    config = _part_config(part, model.max_batch_size, device)
    brought = bring(part.name, config, folder)
    member = Member(
        model="",
        part=part.name,
        folder=member_folder(part.name),
        backend=part.backend,
        model_files=part.files,
        support_files=(brought.file,) if brought is not None else (),
        max_batch_size=model.max_batch_size,
        interface=Interface(inputs=part.inputs, outputs=part.outputs),
        environment=brought,
    )
    return _named(model.model, member, config, folder, digester)


def _name_model(model: Package, backend: str, out: Path, digester: Digester) -> Member:
    folder = out / member_folder(MODEL_PART)
    config = parse_config((folder / CONFIG_FILE).read_text())
    member = Member(
        model="",
        part=MODEL_PART,
        folder=member_folder(MODEL_PART),
        backend=backend,
        model_files=model.model_files,
        support_files=model.support_files,
        max_batch_size=model.max_batch_size,
        interface=model.interface,
        reshaped=model.reshaped,
        environment=model.environment,
    )
    return _named(model.model, member, config, folder, digester)


def _named(ensemble: str, member: Member, config: pb.ModelConfig, folder: Path, digester: Digester) -> Member:
    """Give a member a name that tells its content, and write its configuration."""
    config.ClearField("name")
    names = (*member.support_files, *(f"{MODEL_FOLDER}/{file}" for file in member.model_files))
    files = [[name, digester.file(folder / name)] for name in names]
    digest = digest_of([text_of(config), sorted(files)])[:_DIGEST_LETTERS]
    config.name = f"{ensemble}.{member.part}.{digest}"
    (folder / CONFIG_FILE).write_text(text_of(config))
    return member.model_copy(update={"model": config.name})


def _part_config(part: Part, largest: int, device: Device) -> pb.ModelConfig:
    from tritonclient.grpc import model_config_pb2 as pb

    config = pb.ModelConfig(backend=part.backend, max_batch_size=largest)
    config.default_model_filename = part.files[0]
    put_tensors(part.inputs, config.input)
    put_tensors(part.outputs, config.output)
    if largest > 1 and part.joins_requests:
        config.dynamic_batching.SetInParent()
    for key, value in sorted(part.parameters.items()):
        config.parameters[key].string_value = value
    kind = device if part.backend == "dali" else "cpu"
    config.instance_group.add(kind=f"KIND_{kind.upper()}", count=1)
    config.version_policy.latest.num_versions = 1
    return config


def put_tensors(tensors: Sequence[Tensor], entries: Sequence[pb.ModelInput | pb.ModelOutput]) -> None:
    """Write inputs or outputs, whose first dim is the batch, into a configuration.

    Raises:
        EngineError: a dtype that Triton has no name for.
    """
    for tensor in tensors:
        dims = [-1 if isinstance(dim, str) else dim for dim in tensor.dims[1:]]
        entries.add(name=tensor.name, data_type=data_type(tensor), dims=dims or [1])  # type: ignore[attr-defined]


def _ensemble(
    model: Package, pipeline: Pipeline, members: Sequence[Member], policy: VersionPolicy | None
) -> pb.ModelConfig:
    from tritonclient.grpc import model_config_pb2 as pb

    config = pb.ModelConfig(name=model.model, platform="ensemble", max_batch_size=model.max_batch_size)
    put_policy(config, policy)
    put_tensors(pipeline.inputs, config.input)
    put_tensors(pipeline.outputs, config.output)
    read = {tensor.name for tensor in pipeline.outputs}
    read |= {tensor.name for member in members for tensor in member.interface.inputs}
    for member in members:
        step = config.ensemble_scheduling.step.add(model_name=member.model, model_version=-1)
        step.input_map.update(same_names(member.interface.inputs))
        # Triton refuses a tensor that nobody reads.
        step.output_map.update(same_names([t for t in member.interface.outputs if t.name in read]))
    return config


def put_policy(config: pb.ModelConfig, policy: VersionPolicy | None) -> None:
    """Write which versions Triton serves into a configuration; the newest one when None."""
    from google.protobuf import json_format

    if policy is None:
        config.version_policy.latest.num_versions = 1
    else:
        given = policy.model_dump(mode="json", exclude_none=True)
        json_format.ParseDict(given, config.version_policy)


def same_names(tensors: Sequence[Tensor]) -> dict[str, str]:
    """A model's names of tensors and those of what is around it, where these are the same."""
    return {tensor.name: tensor.name for tensor in tensors}
