"""Ensembles and their members: configurations, and names that encode the members' content."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.triton.options import VersionPolicy
from plansmith.errors import EngineError, UsageError
from plansmith.records.model import Device, Tensor
from plansmith.records.pipeline import MODEL_PART, Part, Pipeline
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Interface, Member, Package, PackedEnvironment
from plansmith.system.digest import Digester, digest_of
from plansmith.system.files import link_or_copy
from plansmith.triton.config.model_config import data_type, parse_config, text_of

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


MEMBERS_PARAMETER = "plansmith.members"
"""Of the configuration of a script: the names of the models that it asks, separated by commas.

Triton loads the models of an ensemble's steps by itself, and knows nothing of what a Python model may ask.
"""

MEMBERS_FOLDER = "members"
PIPELINE_FILE = "pipeline.json"
_DIGEST_LETTERS = 8
Bring = Callable[[str, "pb.ModelConfig", Path], PackedEnvironment | None]
"""Puts the environment of a part into a folder and names it in a configuration; None where the part brings none."""


def put_members(config: Any, names: Iterable[str]) -> None:
    """Record in a script's configuration which models it calls."""
    config.parameters[MEMBERS_PARAMETER].string_value = ",".join(dict.fromkeys(names))


def member_folder(part: str) -> str:
    """Return the folder of a part's member in a release."""
    return f"{MEMBERS_FOLDER}/{part}"


def part_name(branch: str, part: str) -> str:
    """Return a part's name in a release, prefixed with the companion model it belongs to ("" for the release's own)."""
    return f"{branch}-{part}" if branch else part


def tensor_name(branch: str, tensor: str) -> str:
    """Return the name in a release of a tensor made by a model or its parts, with the same prefix."""
    return f"{branch}_{tensor}" if branch else tensor


@dataclass(frozen=True)
class Branch:
    """Branch: a model of a release with its pipeline parts, before they are named on Triton.

    Args:
        name: what its parts and tensors begin with; empty for the release's own model.
        model: as a release of its own under the ensemble's name; its files lie in the folder of its member.
        backend: Triton's name of what serves it.
        pipeline: what stands around it.
        parts: the pipeline's folder, with a folder for each part.
    """

    name: str
    model: Package
    backend: str
    pipeline: Pipeline
    parts: Path

    def part(self, name: str) -> str:
        """Return the name of one of its parts in the release."""
        return part_name(self.name, name)

    def tensor(self, name: str) -> str:
        """Return the name of one of its tensors in the release."""
        return tensor_name(self.name, name)


@dataclass(frozen=True)
class Step:
    """Ensemble step: a member, with its input and output names mapped to tensors of the release."""

    member: Member
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def chains_of(
    branches: Sequence[Branch], out: Path, *, device: Device, digester: Digester, bring: Bring
) -> dict[str, list[Step]]:
    """Write the members of a release, and return the chain of steps of each of its models.

    What makes the same of the same tensors is there once.

    Args:
        branches: the release's own model, and those beside it, whose files lie in `out` already.
        out: the release's folder.
        device: what the target's instances run on.
        digester: hashes files.
        bring: puts what a part brings with it beside its configuration.

    Raises:
        EngineError: a model does not batch.
        UsageError: the models take different raw inputs.
        EnvironmentFault: an environment cannot be packed.
    """
    for branch in branches:
        _require_together(branch, branches[0])
    largest = largest_batch(branches)
    write = partial(_write_part, largest=largest, out=out, device=device, digester=digester, bring=bring)
    shared: dict[str, Step] = {}
    chains: dict[str, list[Step]] = {}
    for branch in branches:
        chain = chains[branch.name] = []
        names = {tensor.name: tensor.name for tensor in branch.pipeline.inputs}
        for part in branch.pipeline.before:
            key = _content(branch, part, names, digester)
            if key not in shared:
                shared[key] = _step(branch, write(branch, part), names)
            chain.append(shared[key])
            names |= chain[-1].outputs
        chain.append(_step(branch, _name_model(branch, out, digester), names))
        names |= chain[-1].outputs
        for part in branch.pipeline.after:
            chain.append(_step(branch, write(branch, part), names))
            names |= chain[-1].outputs
    return chains


def write_ensemble(
    branches: Sequence[Branch], chains: Mapping[str, Sequence[Step]], out: Path, policy: VersionPolicy | None
) -> Package:
    """Build an ensemble release of models and their pipeline parts that serves every request.

    Args:
        branches: the release's own model, and those beside it.
        chains: as `chains_of` told them.
        out: the release's folder.
        policy: which versions of the ensemble Triton serves; the newest one when None.
    """
    model = branches[0].model
    steps = _all_steps(chains)
    outputs = tuple(
        tensor.model_copy(update={"name": branch.tensor(tensor.name)})
        for branch in branches
        for tensor in branch.pipeline.outputs
    )
    labels = {branch.tensor(name): classes for branch in branches for name, classes in branch.pipeline.labels.items()}
    package = Package(
        model=model.model,
        config_file=CONFIG_FILE,
        model_files=(PIPELINE_FILE,),
        support_files=tuple(map(_label_file, labels)),
        max_batch_size=largest_batch(branches),
        interface=Interface(inputs=branches[0].pipeline.inputs, outputs=outputs),
        server_arguments=arguments_of(branches),
        members=members_of(chains),
    )
    for name, classes in labels.items():
        (out / _label_file(name)).write_text("".join(f"{label}\n" for label in classes), encoding="utf-8")
    (out / CONFIG_FILE).write_text(text_of(_ensemble(package, steps, policy, set(labels))))
    document = {
        "input": branches[0].pipeline.input,
        "output": {branch.name or MODEL_PART: branch.pipeline.output for branch in branches},
        "parts": [{"part": step.member.part, "model": step.member.model} for step in steps],
    }
    (out / MODEL_FOLDER).mkdir()
    (out / MODEL_FOLDER / PIPELINE_FILE).write_text(json.dumps(document, indent=1) + "\n")
    return package


def _all_steps(chains: Mapping[str, Sequence[Step]]) -> list[Step]:
    """All distinct steps, in execution order."""
    return list({step.member.model: step for chain in chains.values() for step in chain}.values())


def members_of(chains: Mapping[str, Sequence[Step]]) -> tuple[Member, ...]:
    """Return the members of a release, each once, in execution order."""
    return tuple(step.member for step in _all_steps(chains))


def arguments_of(branches: Sequence[Branch]) -> tuple[str, ...]:
    """Return the server arguments that a release's models need."""
    return tuple(dict.fromkeys(argument for branch in branches for argument in branch.model.server_arguments))


def largest_batch(branches: Sequence[Branch]) -> int:
    """Return the largest batch that all models of a release accept."""
    return min(branch.model.max_batch_size for branch in branches)


def _require_together(branch: Branch, first: Branch) -> None:
    """Require that a model can be in one release with the first."""
    if not branch.model.max_batch_size:
        raise EngineError(
            "a pipeline joins the samples of several requests, and the model has no batch axis that moves",
            remedy="leave `pipeline` out of the spec, or give shapes with a batch that moves",
        )
    if branch.pipeline.inputs != first.pipeline.inputs:
        theirs, ours = (", ".join(t.name for t in item.pipeline.inputs) for item in (branch, first))
        raise UsageError(
            f"the models of a pipeline answer the same requests, and {branch.name} takes {theirs} where the spec's own"
            f" model takes {ours}",
            remedy=f"leave {branch.name} out of `pipeline: models`, or give it the same `input`",
        )


def _content(branch: Branch, part: Part, names: Mapping[str, str], digester: Digester) -> str:
    """A content digest, equal for two parts that compute the same from the same tensors."""
    client_outputs = [branch.tensor(t.name) for t in part.outputs if t in branch.pipeline.outputs]  # clients read these
    files = [[file, digester.file(branch.parts / part.name / file)] for file in part.files]
    inputs = [[tensor.name, names[tensor.name]] for tensor in part.inputs]
    return digest_of(
        [part.model_dump(mode="json", exclude={"name"}), branch.pipeline.instances, files, inputs, client_outputs]
    )


def _step(branch: Branch, member: Member, names: Mapping[str, str]) -> Step:
    inputs = {tensor.name: names[tensor.name] for tensor in member.interface.inputs}
    return Step(member, inputs, {tensor.name: branch.tensor(tensor.name) for tensor in member.interface.outputs})


def _write_part(
    branch: Branch, part: Part, *, largest: int, out: Path, device: Device, digester: Digester, bring: Bring
) -> Member:
    name = branch.part(part.name)
    folder = out / member_folder(name)
    for file in part.files:
        link_or_copy(branch.parts / part.name / file, folder / MODEL_FOLDER / file)
    config = _part_config(part, largest, device, branch.pipeline.instances)
    brought = bring(name, config, folder)
    member = Member(
        model="",
        part=name,
        folder=member_folder(name),
        backend=part.backend,
        model_files=part.files,
        support_files=(brought.file,) if brought is not None else (),
        max_batch_size=largest,
        interface=Interface(inputs=part.inputs, outputs=part.outputs),
        environment=brought,
    )
    return _named(branch.model.model, member, config, folder, digester)


def _name_model(branch: Branch, out: Path, digester: Digester) -> Member:
    name, model = branch.part(MODEL_PART), branch.model
    folder = out / member_folder(name)
    config = parse_config((folder / CONFIG_FILE).read_text())
    member = Member(
        model="",
        part=name,
        folder=member_folder(name),
        backend=branch.backend,
        model_files=model.model_files,
        support_files=model.support_files,
        max_batch_size=model.max_batch_size,
        interface=model.interface,
        reshaped=model.reshaped,
        environment=model.environment,
    )
    return _named(model.model, member, config, folder, digester)


def _named(ensemble: str, member: Member, config: pb.ModelConfig, folder: Path, digester: Digester) -> Member:
    """Name a member after its content, and write its configuration."""
    config.ClearField("name")
    names = (*member.support_files, *(f"{MODEL_FOLDER}/{file}" for file in member.model_files))
    files = [[name, digester.file(folder / name)] for name in names]
    digest = digest_of([text_of(config), sorted(files)])[:_DIGEST_LETTERS]
    config.name = f"{ensemble}.{member.part}.{digest}"
    (folder / CONFIG_FILE).write_text(text_of(config))
    return member.model_copy(update={"model": config.name})


def _part_config(part: Part, largest: int, device: Device, instances: int) -> pb.ModelConfig:
    from plansmith.triton.messages import model_config_pb2 as pb

    config = pb.ModelConfig(backend=part.backend, max_batch_size=largest)
    config.default_model_filename = part.files[0]
    put_tensors(part.inputs, config.input)
    put_tensors(part.outputs, config.output)
    if largest > 1 and part.joins_requests:
        config.dynamic_batching.SetInParent()
    for key, value in sorted(part.parameters.items()):
        config.parameters[key].string_value = value
    kind = device if part.backend == "dali" else "cpu"
    config.instance_group.add(kind=f"KIND_{kind.upper()}", count=instances)
    config.version_policy.latest.num_versions = 1
    return config


def put_tensors(tensors: Sequence[Tensor], entries: Sequence[pb.ModelInput | pb.ModelOutput]) -> None:
    """Add inputs or outputs, whose first dim is the batch, to a configuration.

    Raises:
        EngineError: a dtype that Triton has no name for.
    """
    for tensor in tensors:
        dims = [-1 if isinstance(dim, str) else dim for dim in tensor.dims[1:]]
        entries.add(name=tensor.name, data_type=data_type(tensor), dims=dims or [1])  # type: ignore[attr-defined]


def _label_file(output: str) -> str:
    """The label file of an output: the names of its classes."""
    return f"{output}_labels.txt"


def _ensemble(
    package: Package, steps: Sequence[Step], policy: VersionPolicy | None, labelled: set[str]
) -> pb.ModelConfig:
    from plansmith.triton.messages import model_config_pb2 as pb

    config = pb.ModelConfig(name=package.model, platform="ensemble", max_batch_size=package.max_batch_size)
    put_policy(config, policy)
    put_tensors(package.interface.inputs, config.input)
    put_tensors(package.interface.outputs, config.output)
    for output in config.output:
        if output.name in labelled:
            output.label_filename = _label_file(output.name)
    read = {tensor.name for tensor in package.interface.outputs}
    read |= {name for step in steps for name in step.inputs.values()}
    for step in steps:
        entry = config.ensemble_scheduling.step.add(model_name=step.member.model, model_version=-1)
        entry.input_map.update(step.inputs)
        # Triton refuses a tensor that nobody reads.
        entry.output_map.update({own: name for own, name in step.outputs.items() if name in read})
    return config


def put_policy(config: pb.ModelConfig, policy: VersionPolicy | None) -> None:
    """Set the version policy in a configuration; None means the newest version."""
    from google.protobuf import json_format

    if policy is None:
        config.version_policy.latest.num_versions = 1
    else:
        values = policy.model_dump(mode="json", exclude_none=True)
        json_format.ParseDict(values, config.version_policy)
