"""Generation parameters of a request, under transformers' names, each validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plansmith.records.model import BATCH, Record, Tensor

TEXT_TENSOR = Tensor(name="text", dtype="string", dims=(BATCH, 1))
"""What goes in, and what comes out."""

GENERATES, STREAMS = "generates", "streams"
"""Options of an engine that answers with text: what it generates, and whether it may do so piece by piece."""

USUAL_NEW_TOKENS = 20
"""How many tokens `generate` of transformers goes on for where nothing says."""

_MOST_SEED = 2**63 - 1
_TRUTHS = {"true": True, "false": False}

_OF_SAMPLING = ("temperature", "top_k", "top_p")


class Unanswerable(ValueError):
    """Refusal of a request or one of its texts, with the reason."""


class GenerationLimits(Record):
    """Length limits of prompts and answers.

    `decodes_only`: prompt and answer are one sequence; `positions`: of that sequence, or of the answer where an encoder
    reads the prompt; None where there is no end to them. `prompt_tokens`: what a longer text is cut to;
    `most_new_tokens`: the most that a request may ask for; `new_tokens` and `length`: what the model's own
    configuration says of answers, and of prompt and answer together (`max_new_tokens` and `max_length`).
    """

    decodes_only: bool
    positions: int | None
    prompt_tokens: int
    most_new_tokens: int
    new_tokens: int | None = None
    length: int | None = None

    def prompt_room(self, requested: int | None) -> int:
        """Return how many tokens of a prompt are read.

        Args:
            requested: the new tokens that a request asks for; None where it does not say.

        Raises:
            Unanswerable: none.
        """
        if not self.decodes_only or self.positions is None:
            return self.prompt_tokens
        new = requested or self.new_tokens or (1 if self.length else USUAL_NEW_TOKENS)
        room = min(self.prompt_tokens, self.positions - new)
        if room < 1:
            raise Unanswerable(
                f"{new} new tokens leave no room for the text: the model has {self.positions} positions for both"
            )
        return room

    def answer_room(self, requested: int | None, prompt_tokens: int) -> int:
        """Return the maximum number of new tokens after a prompt of so many.

        Raises:
            Unanswerable: none.
        """
        new = requested or self.new_tokens
        if new is None and self.length is not None:
            new = self.length - (prompt_tokens if self.decodes_only else 1)
            if new < 1:
                raise Unanswerable(
                    f"the text has {prompt_tokens} tokens, and the model's configuration ends answers at {self.length}"
                    " with the text: send max_new_tokens"
                )
        return min(new or USUAL_NEW_TOKENS, self.most_new_tokens)


@dataclass(frozen=True)
class GenerationParameters:
    """Generation parameters of one request.

    Args:
        options: of transformers' generation configuration, only those that differ from the model's own.
        new_tokens: at most; None where the request does not say.
        seed: of the draws; None for other ones each time.
        stream: pieces of text as they are generated.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    new_tokens: int | None = None
    seed: int | None = None
    stream: bool = False


@dataclass(frozen=True)
class _Number:
    """A numeric parameter with inclusive bounds; `above` is an exclusive lower bound."""

    kind: type[int] | type[float]
    low: float
    high: float
    above: bool = False

    def read(self, name: str, value: Any) -> int | float:
        number = self._number(value)
        if number is None or not (self.low < number if self.above else self.low <= number) or number > self.high:
            least = f"above {self.low:g}" if self.above else f"from {self.low:g}"
            kind_name = "a whole number" if self.kind is int else "a number"
            raise Unanswerable(f"parameter {name} is {kind_name} {least} to {_plain(self.high)}, and not {value!r}")
        return number

    def _number(self, value: Any) -> int | float | None:
        """Parse a number, or return None.

        Strings are parsed, as gRPC clients of older servers cannot send floats otherwise.
        """
        if isinstance(value, bool):
            return None
        try:
            if self.kind is float or isinstance(value, float):
                number = float(value)
                return number if self.kind is float else int(number) if number.is_integer() else None
            return int(value)
        except (TypeError, ValueError, OverflowError):
            return None


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


_OPTIONS: dict[str, _Number | None] = {
    "num_beams": _Number(int, 1, 16),
    "do_sample": None,
    "temperature": _Number(float, 0, 100, above=True),
    "top_k": _Number(int, 0, 1_000_000),
    "top_p": _Number(float, 0, 1, above=True),
    "repetition_penalty": _Number(float, 0, 100, above=True),
    "length_penalty": _Number(float, -10, 10),
    "no_repeat_ngram_size": _Number(int, 0, 1000),
    "min_new_tokens": _Number(int, 0, 1_000_000),
}
"""By transformers' names; None for what is true or false."""

PARAMETERS = ("max_new_tokens", *_OPTIONS, "seed", "stream")
"""All that a request may say."""


def read_generation_parameters(
    parameters: Mapping[str, Any], limits: GenerationLimits, own: Mapping[str, Any]
) -> GenerationParameters:
    """Validate the generation parameters of one request.

    Args:
        parameters: as Triton tells them: numbers, texts, true and false.
        limits: of the model.
        own: the model's generation configuration, for what the request does not say.

    Raises:
        Unanswerable: one that nobody knows, that is out of range, or that does not go with another.
    """
    unknown = sorted(parameters.keys() - set(PARAMETERS))
    if unknown:
        raise Unanswerable(f"there is no parameter {unknown[0]!r}; there are {', '.join(PARAMETERS)}")
    options = {name: _read(name, parameters[name]) for name in _OPTIONS if name in parameters}
    effective = {**own, **options}
    samples, beams = bool(effective.get("do_sample")), effective.get("num_beams") or 1
    idle = [name for name in _OF_SAMPLING if name in options and not samples]
    if idle:
        raise Unanswerable(f"parameter {idle[0]} does nothing without do_sample: true")
    stream = _truth("stream", parameters["stream"]) if "stream" in parameters else False
    if stream and beams > 1:
        raise Unanswerable(f"beams are compared when they end, so that nothing streams with num_beams {beams}: send 1")
    new = None
    if "max_new_tokens" in parameters:
        new = int(_Number(int, 1, limits.most_new_tokens).read("max_new_tokens", parameters["max_new_tokens"]))
    seed = int(_Number(int, 0, _MOST_SEED).read("seed", parameters["seed"])) if "seed" in parameters else None
    return GenerationParameters(options, new, seed if samples else None, stream)


def _read(name: str, value: Any) -> Any:
    number = _OPTIONS[name]
    return _truth(name, value) if number is None else number.read(name, value)


def _truth(name: str, value: Any) -> bool:
    truth = _TRUTHS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(truth, bool):
        raise Unanswerable(f"parameter {name} is true or false, and not {value!r}")
    return truth
