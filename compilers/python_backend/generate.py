"""Batched text generation: each text gets the answer that it would get alone."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plansmith.compilers.python_backend.generation_parameters import (
    GenerationLimits,
    GenerationParameters,
    Unanswerable,
)
from plansmith.compilers.python_backend.run import loss_of
from plansmith.errors import first_line
from plansmith.sources.loaded_model import ModuleSnapshot

if TYPE_CHECKING:
    import torch


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_UNFINISHED = "\ufffd"

CANCELLED = "cancelled: nobody waits for the answer"
_LOOKING_AT_TEXT = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")
_LOOKING_BACK = (*_LOOKING_AT_TEXT, "repetition_penalty", "no_repeat_ngram_size", "sequence_bias", "bad_words_ids")
"""Options that compare tokens with those before them; where an encoder reads the text, only two see it."""

_NEUTRAL: tuple[object, ...] = (None, 0, 1, 1.0)


class GrowingText:
    """Incremental text of one answer while it is generated.

    What later tokens may still change is held back: the bytes of a character that is not whole yet and, where the
    tokenizer takes spaces out before punctuation, all from the last space on.

    Args:
        tokenizer: decodes tokens.
        ends: ids that end an answer.
        tell: takes each piece; None where nobody listens.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int], tell: Callable[[str], None] | None) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._tell = tell
        self._tokens: list[int] = []
        self._is_ended = False
        self.sent_text = ""

    def restart(self) -> None:
        """Restart the same answer from its beginning; text that was already sent is not sent again."""
        self._tokens, self._is_ended = [], False

    def add(self, token: int) -> None:
        """Add the next token; those after the end are padding."""
        if self._is_ended or self._tell is None:
            return
        self._tokens.append(token)
        self._is_ended = token in self._ends
        text = self._settled()
        if len(text) > len(self.sent_text) and text.startswith(self.sent_text):
            piece, self.sent_text = text[len(self.sent_text) :], text
            self._tell(piece)

    def remainder(self, text: str) -> str | None:
        """Return the unsent rest of the complete answer; None if it does not continue what was sent."""
        return text[len(self.sent_text) :] if text.startswith(self.sent_text) else None

    def _settled(self) -> str:
        count = len(self._tokens)
        while count and _BYTE.fullmatch(self._tokenizer.convert_ids_to_tokens(self._tokens[count - 1]) or ""):
            count -= 1
        text = decoded(self._tokenizer, self._tokens[:count]).rstrip(_UNFINISHED)
        if getattr(self._tokenizer, "clean_up_tokenization_spaces", False):
            return text[: max(text.rfind(" "), 0)]
        return text


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    """Return the text of tokens, without special ones."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


@dataclass(frozen=True)
class Prompt:
    """A prompt with its generation parameters.

    Args:
        text: of the client.
        wishes: how.
        tell: takes pieces of the answer as they are generated; None for the whole alone.
        is_cancelled: whether nobody waits for the answer any more; asked after every token.
    """

    text: str
    wishes: GenerationParameters = field(default_factory=GenerationParameters)
    tell: Callable[[str], None] | None = None
    is_cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Answer:
    """A generated text and the part of it not yet streamed; or why there is none."""

    text: str = ""
    remainder: str = ""
    refusal: str = ""
    is_cancelled: bool = False


@dataclass
class _Row:
    """An encoded prompt."""

    place: int
    prompt: Prompt
    ids: list[int]
    new_tokens: int
    growing: GrowingText

    def key(self, own: Any, looking: Sequence[str]) -> tuple[object, ...]:
        """The batching key: equal for rows that can be generated together.

        Draws that have a seed depend on no other row. What looks at the tokens of the text would see padding among
        them: such rows go with others of their length.

        Args:
            own: the model's generation configuration.
            looking: the options that look there.
        """
        wishes = self.prompt.wishes
        alone = self.place if wishes.seed is not None else None
        effective = {name: wishes.options.get(name, getattr(own, name, None)) for name in looking}
        length = len(self.ids) if any(value not in _NEUTRAL for value in effective.values()) else None
        return (self.new_tokens, tuple(sorted(wishes.options.items())), alone, length)


class Generator:
    """Text generator with one model, batch by batch.

    Args:
        module: of transformers, in eval mode, on its device and in its precision.
        tokenizer: its own.
        limits: how long texts may be.
        largest: the most texts that are generated at once.
    """

    def __init__(self, module: Any, tokenizer: Any, limits: GenerationLimits, largest: int) -> None:
        self._module = module
        self._tokenizer = tokenizer
        self._limits = limits
        self._largest = max(1, largest)
        config = module.generation_config
        ends = config.eos_token_id
        self._ends = [ends] if isinstance(ends, int) else list(ends or ())
        candidates = (config.pad_token_id, tokenizer.pad_token_id, *self._ends, 0)
        self._snapshot = ModuleSnapshot(module)
        self._pad = next(candidate for candidate in candidates if candidate is not None)

    def answers(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Yield each prompt's index and answer, in order of completion.

        Prompts with equal wishes are generated together, padded; what fails together is asked again one by one.
        """
        rows = []
        for place, prompt in enumerate(prompts):
            try:
                rows.append(self._encoded(place, prompt))
            except Unanswerable as refusal:
                yield place, Answer(refusal=str(refusal))
        groups: dict[tuple[object, ...], list[_Row]] = {}
        looking = _LOOKING_BACK if self._limits.decodes_only else _LOOKING_AT_TEXT
        for row in sorted(rows, key=lambda row: len(row.ids)):  # those of like lengths need little padding
            groups.setdefault(row.key(self._module.generation_config, looking), []).append(row)
        for group in groups.values():
            for start in range(0, len(group), self._largest):
                yield from self._answered(group[start : start + self._largest])

    def _encoded(self, place: int, prompt: Prompt) -> _Row:
        requested = prompt.wishes.new_tokens
        room = self._limits.prompt_room(requested)
        ids: list[int] = self._tokenizer(prompt.text, truncation=True, max_length=room)["input_ids"]
        if not ids:  # as `generate` begins where it is given nothing
            begins = self._module.generation_config.bos_token_id
            if begins is None:
                raise Unanswerable("the text is empty, and the model has no token to begin with")
            ids = [begins]
        growing = GrowingText(self._tokenizer, self._ends, prompt.tell)
        return _Row(place, prompt, ids, self._limits.answer_room(requested, len(ids)), growing)

    def _answered(self, rows: Sequence[_Row]) -> Iterator[tuple[int, Answer]]:
        """Generate the answers to rows with one key; rows cancelled while they waited are skipped."""
        waiting = [row for row in rows if not row.prompt.is_cancelled()]
        for row in rows:
            if row not in waiting:
                yield row.place, Answer(refusal=CANCELLED, is_cancelled=True)
        if not waiting:
            return
        answers, problem = self._tried(waiting)
        if not problem:
            yield from ((row.place, answer) for row, answer in zip(waiting, answers, strict=True))
        elif len(waiting) == 1:
            yield waiting[0].place, Answer(refusal=problem)
        else:
            for row in waiting:
                row.growing.restart()
                yield from self._answered([row])

    def _tried(self, rows: Sequence[_Row]) -> tuple[list[Answer], str]:
        """The answers, or none and the reason; the error is dropped here, as it keeps the run's memory alive."""
        try:
            return self._generated(rows), ""
        except Exception as fault:  # noqa: BLE001 - whatever fails in a run is the answer to its requests
            return [], f"PyTorch: {type(fault).__name__}: {first_line(fault)}{loss_of(self._module.device)}"

    def _generated(self, rows: Sequence[_Row]) -> list[Answer]:
        import torch
        from transformers import StoppingCriteriaList

        ids, mask = self._padded(rows)
        wishes, stop = rows[0].prompt.wishes, _stopping(rows)
        options: dict[str, Any] = {"stopping_criteria": StoppingCriteriaList([stop])}
        if any(row.prompt.tell is not None for row in rows):
            options["streamer"] = _listening(rows)
        if wishes.seed is not None:
            torch.manual_seed(wishes.seed)
        try:
            with torch.inference_mode():
                sequences = self._module.generate(
                    input_ids=ids, attention_mask=mask, generation_config=self._configured(rows[0]), **options
                )
        finally:
            self._snapshot.put_back()
        answers = sequences[:, ids.shape[1] :] if self._limits.decodes_only else sequences
        return [
            self._answer(row, tokens, is_cancelled=bool(is_gone))
            for row, tokens, is_gone in zip(rows, answers.tolist(), stop.cancel_flags, strict=True)
        ]

    def _answer(self, row: _Row, tokens: list[int], *, is_cancelled: bool) -> Answer:
        if is_cancelled:
            return Answer(refusal=CANCELLED, is_cancelled=True)
        first = 0 if self._limits.decodes_only else 1  # a decoder may begin with what ends texts, as BART's does
        end = next((place for place, token in enumerate(tokens) if place >= first and token in self._ends), len(tokens))
        text = decoded(self._tokenizer, tokens[: end + 1])
        rest = row.growing.remainder(text)
        if rest is None:
            return Answer(refusal="the end of the text changed what was streamed of it: ask without stream")
        return Answer(text, rest)

    def _padded(self, rows: Sequence[_Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pad tokens and mask to one length: left padding where the answer continues the prompt, else right padding."""
        import torch

        longest = max(len(row.ids) for row in rows)
        ids, mask = [], []
        for row in rows:
            pads = longest - len(row.ids)
            before, behind = (pads, 0) if self._limits.decodes_only else (0, pads)
            ids.append([self._pad] * before + row.ids + [self._pad] * behind)
            mask.append([0] * before + [1] * len(row.ids) + [0] * behind)
        return torch.tensor(ids, device=self._module.device), torch.tensor(mask, device=self._module.device)

    def _configured(self, row: _Row) -> Any:
        config = copy.deepcopy(self._module.generation_config)
        config.max_length = None
        config.update(**row.prompt.wishes.options, max_new_tokens=row.new_tokens, pad_token_id=self._pad)
        return config


def _stopping(rows: Sequence[_Row]) -> Any:
    """A stopping criterion: ends rows whose clients cancelled, as `cancel_flags` reports."""
    import torch
    from transformers import StoppingCriteria

    class Stopping(StoppingCriteria):
        def __init__(self) -> None:
            self.cancel_flags = [False] * len(rows)

        def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            for place, row in enumerate(rows):
                self.cancel_flags[place] = self.cancel_flags[place] or row.prompt.is_cancelled()
            each = torch.tensor(self.cancel_flags, device=input_ids.device)
            return each.repeat_interleave(input_ids.shape[0] // len(rows))  # several beams of a row

    return Stopping()


def _listening(rows: Sequence[_Row]) -> Any:
    """A streamer that passes each row its tokens; the first that `generate` emits are the prompts."""
    from transformers.generation.streamers import BaseStreamer

    class Listening(BaseStreamer):
        def __init__(self) -> None:
            self._is_begun = False

        def put(self, value: torch.Tensor) -> None:
            if not self._is_begun:
                self._is_begun = True
                return
            for row, token in zip(rows, value.reshape(-1).tolist(), strict=True):
                row.growing.add(token)

        def end(self) -> None:
            pass

    return Listening()
