"""What a transformers model answers: flat tensors, named as its documentation names them. Runs in the worker.

Caches, losses and what only training wants are left out. Tuples of tensors, such as hidden states, and answers inside
of answers are flattened with both names; they are kept where somebody asks for them or nothing else is there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith.sources.huggingface.config_values import parts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# Tensors that a server has no use for: the past of a decoder or of a recurrent model, and what training adds up.
_DROPPED = re.compile(
    r"^(past_key_values|cache_params|mems|state|past_buckets_states|rope_deltas)$|(^|_)(loss|losses|router_logits)$"
)
# What a loss in the middle of a decoder is taken of: given to whoever asks for it by name.
_FOR_LOSSES = re.compile(r"^(auxiliary_|intermediate_|init(ial)?_reference_points|enc_(outputs|topk)_|denoising_)")
# Kept for whoever asks by name: a model gives them only when it is told to.
_TOKENS, _POOLED = "last_hidden_state", "pooler_output"
_HIDDEN = "output_hidden_states"
_ON_REQUEST = {
    _HIDDEN: re.compile(r"hidden_states_\d+$"),
    "output_attentions": re.compile(r"attentions_\d+$"),
}
_QUIET = {"use_cache": False, _HIDDEN: False, "output_attentions": False, "return_dict": True}


class Answering:
    """Asks a model with named tensors; gives its answer as named tensors.

    Args:
        model: in eval mode. Its configuration is changed: no caches, no hidden states that nobody asked for.
        wanted: names of outputs to keep, in order; all that a server can give when empty.
        behind: what a directory of sentence-transformers puts behind the encoder (`sentence_transformers`).
    """

    def __init__(self, model: PreTrainedModel, wanted: Sequence[str], behind: torch.nn.Module | None = None) -> None:
        self.model, self.behind = model, behind
        self._wanted = tuple(wanted)
        flags = _QUIET | {flag: any(map(name.search, wanted)) for flag, name in _ON_REQUEST.items()}
        for part in parts(model.config):
            for flag, value in flags.items():
                if getattr(part, flag, None) not in (None, value):
                    setattr(part, flag, value)
        known = inspect.signature(model.forward).parameters
        self._constants = {flag: value for flag, value in flags.items() if flag in known and flag != "return_dict"}

    def __call__(self, feed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The wanted outputs; of those that are wanted and missing, none."""
        everything = self.everything(feed)
        if self._wanted:  # nothing but names: exporters, too, come by here
            return {name: everything[name].tensor for name in self._wanted if name in everything}
        # What a directory pools itself, its encoder's own pooling is not trained for.
        left = {_POOLED} if self.behind is not None else set()
        return {name: everything[name].tensor for name in usual(everything) if name not in left}

    def everything(self, feed: Mapping[str, torch.Tensor]) -> dict[str, OutputTensor]:
        """All that could be asked for."""
        try:
            answer = self.model(**feed, **self._constants)
        except ValueError as error:
            if f"{_HIDDEN}=True" not in str(error):
                raise
            self._constants[_HIDDEN] = True  # a part of the model reads what another part has to give then
            answer = self.model(**feed, **self._constants)
        everything = {found.name: found for found in flat(answer)}
        if self.behind is not None:
            made = self.behind(everything[_TOKENS].tensor, feed.get("attention_mask"))
            everything |= {name: OutputTensor(name, tensor, nested=False) for name, tensor in made.items()}
        return everything


class OutputTensor(NamedTuple):
    """A tensor in an answer; `nested` where it stood inside of another part of it."""

    name: str
    tensor: torch.Tensor
    nested: bool


def flat(answer: Any) -> Iterator[OutputTensor]:
    """Every tensor of whatever a model returns; losses and caches are no part of it."""
    import torch

    if isinstance(answer, torch.Tensor):
        yield OutputTensor("output_0", answer, nested=False)
        return
    yield from _flat(answer.items() if isinstance(answer, Mapping) else _numbered(answer, "output_"))


def usual(outputs: Mapping[str, OutputTensor]) -> Iterator[str]:
    """The outputs to keep where nobody names any: no tensor twice, no single numbers, what is nested in need only."""
    several = [one for one in outputs.values() if one.tensor.ndim > 0 and one.tensor.numel()]
    top = [one for one in several if not one.nested and not _FOR_LOSSES.search(one.name)]
    seen: set[tuple[object, ...]] = set()
    for name, tensor, _ in top or several:
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in seen:
            seen.add(place)
            yield name


def _flat(named: Iterable[tuple[str, Any]], before: str = "") -> Iterator[OutputTensor]:
    import torch

    for name, value in named:
        if _DROPPED.search(name):
            continue
        if isinstance(value, torch.Tensor):
            yield OutputTensor(f"{before}{name}", value, nested=bool(before))
        elif isinstance(value, Mapping):
            yield from _flat(value.items(), f"{before}{name}_")
        elif isinstance(value, list | tuple):
            yield from _flat(_numbered(value), f"{before}{name}_")


def _numbered(values: Iterable[Any], word: str = "") -> Iterator[tuple[str, Any]]:
    return ((f"{word}{i}", value) for i, value in enumerate(values))
