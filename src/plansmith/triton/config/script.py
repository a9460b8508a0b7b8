"""Top-level script of a release: its version folder and its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.triton.options import VersionPolicy
from plansmith.errors import EngineError
from plansmith.pipelines.draft import MODEL_FILE, files_in, script_text, write_model_files
from plansmith.records.model import Record, Tensor
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Interface, Package
from plansmith.triton.config.ensemble import (
    Branch,
    Bring,
    Step,
    arguments_of,
    largest_batch,
    members_of,
    put_members,
    put_policy,
    put_tensors,
    tensor_name,
)
from plansmith.triton.config.model_config import text_of
from plansmith.triton.dtypes import BFLOAT16

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


MAIN = "main"
"""What a script calls the release's own model."""

SCRIPT_PART = "script"
"""The name of the part that is the script itself."""


class ChainStep(Record):
    """Chain step: one model, with its input and output names mapped to tensors of the chain."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


class Chain(Record):
    """Chain: models that a script calls as if they were one; `outputs` are the tensors that it receives."""

    steps: tuple[ChainStep, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class WrittenScript:
    """The configuration and files written for a script.

    Args:
        config: of the model, written nowhere yet.
        files: of its version's folder, what the backend opens first.
    """

    config: pb.ModelConfig
    files: tuple[str, ...]


def is_script(package: Package) -> bool:
    """Whether a release's entry point for clients is a script."""
    from plansmith.pipelines.served.requests import SCRIPT_FILE

    return bool(package.members) and SCRIPT_FILE in package.model_files


def build_script_package(
    script: Path,
    outputs: Sequence[Tensor],
    branches: Sequence[Branch],
    chains: Mapping[str, Sequence[Step]],
    out: Path,
    *,
    numpy: str,
    policy: VersionPolicy | None,
    bring: Bring,
) -> Package:
    """Build a release of models and their pipeline parts whose requests are served by a script.

    Args:
        script: the person's file.
        outputs: what it answers with.
        branches: the release's own model, and those beside it.
        chains: as `chains_of` told them.
        out: the release's folder.
        numpy: the version of NumPy that goes into the script's requirements.
        policy: which versions of the script Triton serves; the newest one when None.
        bring: puts what the script brings with it beside its configuration.

    Raises:
        EngineError: a dtype that cannot go through a script.
        EnvironmentFault: its environment cannot be packed.
    """
    own = branches[0]
    interface = Interface(inputs=own.pipeline.inputs, outputs=tuple(outputs))
    written = write_script(
        script,
        {branch.name or MAIN: _chain_of(branch, chains[branch.name]) for branch in branches},
        interface,
        out / MODEL_FOLDER,
        model=own.model.model,
        max_batch_size=largest_batch(branches),
        requirements={"numpy": numpy},
        policy=policy,
        instances=own.pipeline.instances,
    )
    brought = bring(SCRIPT_PART, written.config, out)
    (out / CONFIG_FILE).write_text(text_of(written.config))
    return Package(
        model=own.model.model,
        config_file=CONFIG_FILE,
        model_files=written.files,
        support_files=(brought.file,) if brought is not None else (),
        max_batch_size=largest_batch(branches),
        interface=interface,
        server_arguments=arguments_of(branches),
        members=members_of(chains),
        environment=brought,
    )


def _chain_of(branch: Branch, steps: Sequence[Step]) -> Chain:
    """The models of a branch in order; its internal tensors lose the branch prefix."""
    front = tensor_name(branch.name, "")

    def own(names: Mapping[str, str]) -> dict[str, str]:
        return {name: tensor.removeprefix(front) for name, tensor in names.items()}

    all_steps = [
        ChainStep(model=item.member.model, inputs=own(item.inputs), outputs=own(item.outputs)) for item in steps
    ]
    read = {tensor for step in all_steps for tensor in step.inputs.values()}
    read |= {tensor.name for tensor in branch.pipeline.outputs}
    needed_steps = [
        step.model_copy(update={"outputs": {name: item for name, item in step.outputs.items() if item in read}})
        for step in all_steps
    ]
    return Chain(steps=tuple(needed_steps), outputs=tuple(tensor.name for tensor in branch.pipeline.outputs))


def write_script(
    script: Path,
    chains: Mapping[str, Chain],
    interface: Interface,
    folder: Path,
    *,
    model: str,
    max_batch_size: int,
    requirements: Mapping[str, str],
    policy: VersionPolicy | None = None,
    instances: int = 1,
) -> WrittenScript:
    """Write the files of a script for Triton's Python backend.

    Args:
        script: the person's file.
        chains: what it may ask, by the names that it asks for.
        interface: what clients send and are answered, batch first.
        folder: that of the version, which is made.
        model: the name of the release's top model.
        max_batch_size: of a request.
        requirements: the versions of the distributions that it needs, NumPy's among them.
        policy: which versions Triton serves; the newest one when None.
        instances: how many executions run at once, each of which answers the requests in it at once.

    Raises:
        EngineError: a dtype that cannot go through a script, or a chain that asks nothing.
    """
    from plansmith.pipelines.served.requests import SCRIPT_FILE
    from plansmith.triton.messages import model_config_pb2 as pb

    _require_possible(chains, interface)
    folder.mkdir(parents=True)
    settings = {
        "chains": {name: chain.model_dump(mode="json") for name, chain in chains.items()},
        "outputs": [tensor.model_dump(mode="json") for tensor in interface.outputs],
    }
    write_model_files(
        folder,
        script_text(),
        modules=("requests", "chains", "scripting"),
        settings=settings,
        requirements=requirements,
    )
    (folder / SCRIPT_FILE).write_bytes(script.read_bytes())
    config = pb.ModelConfig(name=model, backend="python", max_batch_size=max_batch_size)
    config.default_model_filename = MODEL_FILE
    put_policy(config, policy)
    put_tensors(interface.inputs, config.input)
    put_tensors(interface.outputs, config.output)
    put_members(config, [step.model for chain in chains.values() for step in chain.steps])
    if max_batch_size > 1:  # what waits while an execution runs is the next one, all at once
        config.dynamic_batching.SetInParent()
    config.instance_group.add(kind="KIND_CPU", count=instances)
    return WrittenScript(config, files_in(folder))


def _require_possible(chains: Mapping[str, Chain], interface: Interface) -> None:
    for name, chain in chains.items():
        if not chain.steps:
            raise EngineError(f"the script's model {name!r} consists of nothing", remedy="leave it out")
    for tensor in (*interface.inputs, *interface.outputs):
        if tensor.dtype == BFLOAT16:
            raise EngineError(
                f"{tensor.name} is bfloat16, which a script cannot take or answer with: NumPy has no such dtype",
                remedy="cast it inside the model",
            )
