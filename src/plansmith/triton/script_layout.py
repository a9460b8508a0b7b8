"""A script that stands at the top of a release: its version's folder, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.client.wire import BFLOAT16
from plansmith.errors import EngineError
from plansmith.manifest import Interface, Member, Package
from plansmith.pipeline.model_files import MODEL_FILE, files_in, script_text, write_model_files
from plansmith.pipeline.served.scripting import SCRIPT_FILE
from plansmith.triton.ensemble_layout import put_policy, put_tensors, same_names
from plansmith.triton.ensembles import put_members
from plansmith.triton_options.serving import VersionPolicy
from plansmith.types import Record

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


class ChainStep(Record):
    """One model that a chain asks: by the model's own names of its inputs and outputs, the chain's tensors."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


class Chain(Record):
    """Models that a script asks as if they were one: `outputs` are the chain's tensors that it is given."""

    steps: tuple[ChainStep, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class WrittenScript:
    """What was written of a script.

    Args:
        config: of the model, written nowhere yet.
        files: of its version's folder, what the backend opens first.
    """

    config: pb.ModelConfig
    files: tuple[str, ...]


def is_script(package: Package) -> bool:
    """Whether what clients ask of a release is a script."""
    return bool(package.members) and SCRIPT_FILE in package.model_files


def chain_of(members: Sequence[Member], outputs: Sequence[str]) -> Chain:
    """The chain of models whose tensors have the same names in all of them, as those of an ensemble have.

    Args:
        members: in the order in which they are asked.
        outputs: the tensors that a script is given.
    """
    read = {*outputs, *(tensor.name for member in members for tensor in member.interface.inputs)}
    steps = [
        ChainStep(
            model=member.model,
            inputs=same_names(member.interface.inputs),
            outputs=same_names([tensor for tensor in member.interface.outputs if tensor.name in read]),
        )
        for member in members
    ]
    return Chain(steps=tuple(steps), outputs=tuple(outputs))


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
    """Write what Triton's Python backend runs of a script.

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
    from tritonclient.grpc import model_config_pb2 as pb

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
