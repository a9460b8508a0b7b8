"""Chains of models as a script asks them: each step is one model, whose tensors are the chain's by name."""

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
    """A request gets no answer; the text is what its client is told. A script raises it, and may catch a model's."""


class NoSuchModel(KeyError):
    """A script asks for a chain that there is none of."""

    def __str__(self) -> str:
        return str(self.args[0])


class ModelCall(Protocol):
    """A chain as a script calls it: tensors by keyword in, arrays by name out, which nobody may write into."""

    def __call__(self, *, parameters: Parameters | None = None, **tensors: Array) -> dict[str, Array]:
        """The chain's outputs; parameters go with the request, such as max_new_tokens of a model that generates."""
        ...


class Chains:
    """The chains of a release.

    Args:
        settings: by name, the `steps` in their order, each with its `model` and with the chain's tensors for that
            model's `inputs` and `outputs`; and the chain's `outputs`.
        ask: asks one model.
    """

    def __init__(self, settings: Mapping[str, Any], ask: Ask) -> None:
        self._chains = {name: _Chain(name, told["steps"], tuple(told["outputs"])) for name, told in settings.items()}
        self._ask = ask
        self._wanted: dict[str, list[str]] = {}  # of a model whatever any chain reads, so that equal steps are one
        for chain in self._chains.values():
            for step in chain.steps:
                outputs = self._wanted.setdefault(step["model"], [])
                outputs += [name for name in step["outputs"] if name not in outputs]

    def of_request(self) -> Mapping[str, ModelCall]:
        """The models that one request's script may ask, which remember for as long what they answered to what."""
        return _Models(self._chains, self._ask, self._wanted)


class _Chain:
    """One chain; its inputs are the tensors that none of its steps makes."""

    def __init__(self, name: str, steps: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> None:
        self.name, self.steps, self.outputs = name, steps, outputs
        made: set[str] = set()
        inputs: list[str] = []
        for step in steps:
            inputs += [tensor for tensor in step["inputs"].values() if tensor not in {*made, *inputs}]
            made |= set(step["outputs"].values())
        self.inputs = tuple(inputs)

    def require(self, given: Mapping[str, Any]) -> None:
        """See that a script gives what the chain takes, and nothing else."""
        if {*given} != {*self.inputs}:
            names = ", ".join(given) or "nothing"
            raise TypeError(f"the model {self.name!r} takes {', '.join(self.inputs)}, and was given {names}")


class _Models(Mapping[str, ModelCall]):
    """What one request's script asks."""

    def __init__(self, chains: Mapping[str, _Chain], ask: Ask, wanted: Mapping[str, Sequence[str]]) -> None:
        self._chains, self._ask, self._wanted = chains, ask, wanted
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

    def _run(self, chain: _Chain, given: Mapping[str, Any], parameters: Parameters) -> dict[str, Array]:
        chain.require(given)
        known = {name: on_the_wire(name, value) for name, value in given.items()}
        for step in chain.steps:
            feed = {name: known[tensor] for name, tensor in step["inputs"].items()}
            answer = self._answer(step["model"], feed, parameters)
            known |= {tensor: answer[name] for name, tensor in step["outputs"].items()}
        return {name: known[name] for name in chain.outputs}

    def _answer(self, model: str, feed: Arrays, parameters: Parameters) -> Arrays:
        key = (model, tuple(sorted((name, id(array)) for name, array in feed.items())), *sorted(parameters.items()))
        if key in self._answered:
            return self._answered[key][1]
        answered = self._ask(model, feed, self._wanted[model], parameters)
        answer = {name: frozen(array) for name, array in answered.items()}
        # What may be written into may hold something else by the next time.
        if not any(array.flags.writeable for array in feed.values()):
            self._answered[key] = (feed, answer)
        return answer


def frozen(array: Array) -> Array:
    """The same array, but for that nobody writes into it by this name."""
    view = array.view()
    view.flags.writeable = False
    return view


def on_the_wire(name: str, value: Any) -> Array:
    """An array as models take it: texts are bytes in an array of objects.

    Raises:
        TypeError: it is no array, or one of other objects than texts.
    """
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is a {type(value).__name__}, and no array")
    if value.dtype.kind not in "OUS" or (value.dtype.kind == "O" and all(type(one) is bytes for one in value.flat)):
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
