"""Parameters of flows, looked at by their schema before Prefect's server sees them: it takes unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

_HALF_LINE = 120


def entrypoint_of(flow: str) -> str:
    """The module path of a flow, by which deployments name it: `compile-model` is in `flows/compile_model.py`."""
    function = flow.replace("-", "_")
    return f"plansmith.flows.{function}.{function}"


def load_flow(flow: str) -> Any:
    """The flow of a name; imports Prefect."""
    module, _, function = entrypoint_of(flow).rpartition(".")
    return getattr(import_module(module), function)


@cache
def schema_of(flow: str) -> dict[str, Any]:
    """The schema of a flow's parameters, as Prefect's server keeps it with a deployment."""
    from prefect.utilities.callables import parameter_schema

    return parameter_schema(load_flow(flow)).model_dump(mode="json", exclude_unset=True)


def parameter_problems(
    values: Mapping[str, Any], schema: Mapping[str, Any], *, partly: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with the parameters of a flow: the keys that lead there, and words without the place.

    Args:
        values: the parameters by name.
        schema: as `schema_of`, or that of a deployment.
        partly: whether others are given later, so that none is missing yet.
    """
    from prefect.utilities.schema_tools import validate

    known: Mapping[str, Any] = schema.get("properties", {})
    for name in values:
        if name not in known:
            yield (name,), f"{name!r} is no parameter of this flow, which has {', '.join(sorted(known))}"
    given = {name: value for name, value in values.items() if name in known}
    for error in validate(given, dict(schema), preprocess=True, ignore_required=partly):
        keys = tuple(str(key) for key in error.absolute_path)
        said = f"{error.instance!r} is none of what may stand there" if error.validator == "anyOf" else error.message
        yield keys, f"{'.'.join(keys)}: {shortened(said)}" if keys else shortened(said)


def shortened(text: str) -> str:
    """A text in one line: what is wrong with a value stands behind the value, which may be long."""
    line = " ".join(text.split())
    return line if len(line) <= 2 * _HALF_LINE else f"{line[:_HALF_LINE]} … {line[-_HALF_LINE:]}"
