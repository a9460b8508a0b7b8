"""The signature of a model, from its configuration as Triton has it, or from its release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plansmith.records.model import ANONYMOUS, BATCH, Dim, Tensor
from plansmith.triton.client.dtypes import Signature, dtype_from_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.records.release import Package


def signature_from_config(config: pb.ModelConfig) -> Signature:
    """What clients of a model see, from its configuration as Triton completed it.

    A tensor that is reshaped has for clients the dims of the configuration, and not those of the model; but one that
    is a single value in the model is one for clients, too, and gets its dim on the wire alone (see `wire_shape`).
    """
    batch = config.max_batch_size
    return Signature(
        inputs=_tensors(config.input, batch),
        outputs=_tensors(config.output, batch),
        max_batch_size=batch,
        optional=tuple(entry.name for entry in config.input if entry.optional),
        is_cached=config.response_cache.enable,
        is_decoupled=config.model_transaction_policy.decoupled,
    )


def signature_from_package(package: Package) -> Signature:
    """What clients of a release see, but for what its configuration alone tells (see `completed_signature`)."""
    return Signature(
        inputs=package.interface.inputs,
        outputs=package.interface.outputs,
        max_batch_size=package.max_batch_size,
        is_decoupled=package.decoupled,
    )


def completed_signature(signature: Signature, config: pb.ModelConfig) -> Signature:
    """A signature with what a configuration tells: inputs that may be left out, whether answers are cached."""
    complete = signature_from_config(config)
    fields = ("optional", "is_cached", "is_decoupled")
    return signature.model_copy(update={name: getattr(complete, name) for name in fields})


def _tensors(entries: Iterable[pb.ModelInput | pb.ModelOutput], batch: int) -> tuple[Tensor, ...]:
    from tritonclient.grpc import model_config_pb2 as pb

    found = []
    for entry in entries:
        is_value = entry.HasField("reshape") and not entry.reshape.shape and list(entry.dims) == [1]
        own: list[Dim] = [] if is_value else [ANONYMOUS if size == -1 else size for size in entry.dims]
        dtype = dtype_from_config(pb.DataType.Name(entry.data_type))
        found.append(Tensor(name=entry.name, dtype=dtype, dims=(BATCH, *own) if batch else tuple(own)))
    return tuple(found)
