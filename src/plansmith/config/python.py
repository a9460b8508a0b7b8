"""How a person steers a model that is served as PyTorch; the defaults need no steering."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from plansmith.records.model import Record

SITE_VARIABLE = "PLANSMITH_SITE"
"""Names folders with Python packages, separated by ":", for the `model.py` of PyTorch models on Triton."""

OWNER_VARIABLE = "PLANSMITH_SERVER_ID"
"""Tells the environments of Python models which server unpacked them (see `OWNER_FILE`)."""

OWNER_FILE = ".server"
"""In the folder of an unpacked environment: the id of its server."""

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
"""Modes of `torch.compile`, by its names."""


def _check_mode(value: Any) -> Any:
    """Refuses what is neither a switch nor a mode with one error instead of one for each of the two."""
    if not isinstance(value, bool) and value not in get_args(CompileMode):
        raise ValueError(f"must be true, false or a mode of torch.compile: {', '.join(get_args(CompileMode))}")
    return value


TorchCompile = Annotated[bool | CompileMode, BeforeValidator(_check_mode)]
"""Whether a module goes through `torch.compile`, and how."""


EnvironmentChoice = Literal["image", "packed"]
"""Who brings the packages of a Python model: the image of the server, or the model."""


class PythonOptions(Record):
    """How models run in Triton's Python backend: the PyTorch model itself, and parts of a pipeline."""

    environment: EnvironmentChoice = Field(
        default="image",
        description="Where Python models find their packages: in the server's image, which docker/README.md says how to"
        " make, or packed, in an archive that each of them brings with it.",
    )

    torch_compile: TorchCompile = Field(
        default=False,
        description="Have torch.compile compile the model when it is first asked; true, or one of its modes.",
    )
