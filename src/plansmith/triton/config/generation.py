"""What a model that generates text is to Triton: text in, text out, in one answer or in pieces."""

from __future__ import annotations

from collections.abc import Mapping

from plansmith.compilers.python_backend.generation_parameters import STREAMS, TEXT_TENSOR
from plansmith.config.triton import TritonOptions
from plansmith.errors import UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import BATCH, AxisRange
from plansmith.records.release import Interface, Package


def text_package(package: Package, engine: Engine, axes: Mapping[str, AxisRange]) -> Package:
    """The release of a model whose clients send and get text.

    Args:
        package: as it would be of the model's own inputs and outputs.
        engine: says whether it streams.
        axes: the ranges that it is served for.
    """
    return package.model_copy(
        update={
            "interface": Interface(inputs=(TEXT_TENSOR,), outputs=(TEXT_TENSOR,)),
            "max_batch_size": axes[BATCH].max if BATCH in axes else 1,
            "decoupled": engine.options.get(STREAMS) == "true",
        }
    )


def require_uncached(options: TritonOptions) -> None:
    """See that no cache answers: Triton's knows a request by its inputs, and not by its parameters.

    Raises:
        UsageError: the spec wants one.
    """
    if options.response_cache is not None and options.response_cache.enable:
        raise UsageError(
            "triton.response_cache would give every request the first answer to its text, whatever its parameters",
            remedy="leave response_cache out for a model that generates text",
        )
