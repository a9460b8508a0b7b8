"""Model chains called from a script: each step is one model, whose tensors belong to the chain by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

Parameters = Mapping[str, Any]

Ask = Callable[[str, Arrays, Sequence[str], Parameters], Arrays]
"""Asks a model: its name, its inputs, the outputs that are wanted, all by the model's own names, and parameters.

It raises `Refused` where the model gives no answer.
"""


class Refused(Exception):
    """Refused request: its client gets the text as error. Raised by scripts, which may also catch that of a model."""


class NoSuchModel(KeyError):
    """Unknown chain: a script calls a chain that does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


class ModelCall(Protocol):
    """Chain as a callable for scripts: tensors by keyword in, read-only arrays by name out."""

    def __call__(self, *, parameters: Parameters | None = None, **tensors: Array) -> dict[str, Array]:
        """Run the chain and return its outputs.

        Parameters go with the request, such as max_new_tokens for text generation.
        """
        ...


class Chains:
    """Model chains of a release.

    Args:
        settings: by name, the `steps` in their order, each with its `model` and with the chain's tensors for that
            model's `inputs` and `outputs`; and the chain's `outputs`.
        ask: asks one model.
    """

    def __init__(self, settings: Mapping[str, Any], ask: Ask) -> None:
        self._chains = {
            name: _Chain(name, chain_settings["steps"], tuple(chain_settings["outputs"]))
            for name, chain_settings in settings.items()
        }
        self._ask = ask
        self._outputs: dict[str, list[str]] = {}  # of a model whatever any chain reads, so that equal steps are one
        for chain in self._chains.values():
            for step in chain.steps:
                outputs = self._outputs.setdefault(step["model"], [])
                outputs += [name for name in step["outputs"] if name not in outputs]

    def of_request(self) -> Mapping[str, ModelCall]:
        """Return the models that a request's script may call, which cache their answers for that request."""
        return _Models(self._chains, self._ask, self._outputs)


class _Chain:
    """Chain of steps; its inputs are the tensors that none of its steps produces."""

    def __init__(self, name: str, steps: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> None:
        self.name, self.steps, self.outputs = name, steps, outputs
        intermediate: set[str] = set()
        inputs: list[str] = []
        for step in steps:
            inputs += [tensor for tensor in step["inputs"].values() if tensor not in {*intermediate, *inputs}]
            intermediate |= set(step["outputs"].values())
        self.inputs = tuple(inputs)

    def require(self, feed: Mapping[str, Any]) -> None:
        """Check that a script passes exactly the inputs of the chain."""
        if {*feed} != {*self.inputs}:
            names = ", ".join(feed) or "nothing"
            raise TypeError(f"the model {self.name!r} takes {', '.join(self.inputs)}, and was given {names}")


class _Models(Mapping[str, ModelCall]):
    """Models that the script calls for one request."""

    def __init__(self, chains: Mapping[str, _Chain], ask: Ask, outputs: Mapping[str, Sequence[str]]) -> None:
        self._chains, self._ask, self._outputs = chains, ask, outputs
        # With the answer the inputs themselves: while they live, nothing else has their identity.
        self._answered: dict[Any, tuple[Arrays, Arrays]] = {}

    def __getitem__(self, name: str) -> ModelCall:
        if name not in self._chains:
            raise NoSuchModel(f"there is no model {name!r}; there are {', '.join(self._chains)}")
        chain = self._chains[name]
        return lambda *, parameters=None, **tensors: self._run(chain, tensors, parameters or {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._chains)

    def __len__(self) -> int:
        return len(self._chains)

    def _run(self, chain: _Chain, inputs: Mapping[str, Any], parameters: Parameters) -> dict[str, Array]:
        chain.require(inputs)
        tensors = {name: on_the_wire(name, value) for name, value in inputs.items()}
        for step in chain.steps:
            feed = {name: tensors[tensor] for name, tensor in step["inputs"].items()}
            answer = self._answer(step["model"], feed, parameters)
            tensors |= {tensor: answer[name] for name, tensor in step["outputs"].items()}
        return {name: tensors[name] for name in chain.outputs}

    def _answer(self, model: str, feed: Arrays, parameters: Parameters) -> Arrays:
        key = (model, tuple(sorted((name, id(array)) for name, array in feed.items())), *sorted(parameters.items()))
        if key in self._answered:
            return self._answered[key][1]
        answered = self._ask(model, feed, self._outputs[model], parameters)
        answer = {name: frozen(array) for name, array in answered.items()}
        # What may be written into may hold something else by the next time.
        if not any(array.flags.writeable for array in feed.values()):
            self._answered[key] = (feed, answer)
        return answer


def frozen(array: Array) -> Array:
    """Return a read-only view of the array."""
    view = array.view()
    view.flags.writeable = False
    return view


def on_the_wire(name: str, value: Any) -> Array:
    """Return an array in the form that models accept: texts are bytes in an object array.

    Raises:
        TypeError: it is no array, or one of other objects than texts.
    """
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is a {type(value).__name__}, and no array")
    if value.dtype.kind not in "OUS" or (value.dtype.kind == "O" and all(type(item) is bytes for item in value.flat)):
        return value
    texts = np.empty(value.shape, object)
    for place in np.ndindex(value.shape):
        texts[place] = _bytes_of(name, value[place])
    return texts


def _bytes_of(name: str, text: Any) -> bytes:
    if isinstance(text, bytes):
        return bytes(text)
    if isinstance(text, str):
        return text.encode()
    raise TypeError(f"{name} holds a {type(text).__name__}, and no text")
