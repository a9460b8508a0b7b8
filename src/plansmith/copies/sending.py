"""Models that are sent to a running Triton with the call that loads them, and unloaded from it afterwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from plansmith.copies.release import ModelFolder
from plansmith.errors import ServedCheckError, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.release import CONFIG_FILE
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.server.control.api import SentModel
from plansmith.triton.server.control.client import ModelControlClient

MAX_MESSAGE_BYTES = 2**31 - 2**20
"""Of the files of a model in one call: messages of gRPC have less than 2 GiB."""

_PAUSE_SECONDS = 0.02
_READY = "READY"
_LOADED_STATES = {_READY, "LOADING", "UNLOADING"}


def require_sendable(model: ModelFolder) -> None:
    """Check that a model can be sent with the call that loads it.

    Raises:
        UsageError: it is too large; or an ensemble, whose members Triton looks for in its repository.
    """
    problem = ""
    if model.size > MAX_MESSAGE_BYTES:
        problem = f"its files have {format_bytes(model.size)}, and a call that loads a model carries less than 2 GiB"
    elif parse_config(model.files[CONFIG_FILE].read_text()).HasField("ensemble_scheduling"):
        problem = "Triton looks for the members of an ensemble in its own repository"
    if problem:
        raise UsageError(
            f"{model.name} cannot be sent to a running server: {problem}",
            remedy="leave out --url, and measure on a machine like that of the server",
        )


def send(control: ModelControlClient, model: ModelFolder) -> None:
    """Load a model whose files go with the call.

    Raises:
        UsageError: it cannot be sent (`require_sendable`).
        ServedCheckError: the server refuses it, or takes too long.
        EnvironmentFault: the server cannot be asked.
    """
    from google.protobuf import json_format

    require_sendable(model)
    config = parse_config(model.files[CONFIG_FILE].read_text())
    files = {
        path: content.source.read_bytes() if isinstance(content.source, Path) else content.source
        for path, content in model.files.items()
        if path != CONFIG_FILE
    }
    # Triton makes a version's folder for a file in it, and takes no model without one.
    empty = [folder for folder in model.folders if not any(path.startswith(f"{folder}/") for path in files)]
    files |= {f"{folder}/.plansmith": b" " for folder in empty}
    control.change(
        "load", model.name, SentModel(json_format.MessageToJson(config, preserving_proto_field_name=True), files)
    )


def unload(control: ModelControlClient, models: Sequence[str], *, timeout_seconds: float) -> None:
    """Unload models in their order, what asks others before those, and wait until they are gone.

    Triton answers before a model is gone.

    Raises:
        ServedCheckError: the server refuses, or they are still there after the timeout.
        EnvironmentFault: it cannot be asked.
    """
    for model in models:
        control.change("unload", model)
    deadline = time.monotonic() + timeout_seconds
    while states := loaded_models(control, models):
        if time.monotonic() > deadline:
            raise ServedCheckError(
                f"{', '.join(states)} is still loaded {timeout_seconds:g} s after its unload",
                remedy="read the server's log",
            )
        time.sleep(_PAUSE_SECONDS)
        for model, state in states.items():
            if state == _READY:  # its load was under way when it was told to unload
                control.change("unload", model)


def loaded_models(control: ModelControlClient, models: Sequence[str]) -> dict[str, str]:
    """Those of some models that a server has or has not unloaded yet, with their states.

    The index of Triton 2.51 has no models that were sent: of these it is asked for the configuration.
    """
    rows = {row["name"]: row.get("state", "") for row in control.index() if row["name"] in models}
    found = {name: state for name, state in rows.items() if state in _LOADED_STATES}
    found |= {model: _READY for model in models if model not in rows and control.config(model) is not None}
    return found


def unload_leftovers(control: ModelControlClient, models: Sequence[str], *, timeout_seconds: float) -> None:
    """Unload what a killed process left of models; errors as of `unload`."""
    left = loaded_models(control, models)
    if left:
        unload(control, [model for model in models if model in left], timeout_seconds=timeout_seconds)
