"""Text preprocessing: one tokenizer call for all requests of an execution, padded to one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from .requests import Arrays, Refusal
from .spans import UNPLACED, token_spans, word_spans

TOKENIZER_FILE = "tokenizer.json"

Rows = list[Any]  # a text each, or a pair of texts

_VALUES = {
    "input_ids": lambda row: row.ids,
    "attention_mask": lambda row: row.attention_mask,
    "token_type_ids": lambda row: row.type_ids,
}


class TextStep:
    """Text step: tokenizes texts, or pairs of texts.

    Settings:
        columns: names of the inputs, in the order in which the tokenizer takes them: one, or two of a pair.
        prompt: stands before the text of the first column.
        outputs: the model's inputs and their dtypes.
        padding: what each of them holds where there is no token; `padding_side`: "left" or "right".
        max_length, truncation, truncation_side: most tokens, how what is longer is cut, and from where.
        least, step: fewest tokens of a row; how many it may have are multiples of `step`.
        split_special_tokens: whether the names of special tokens are plain text where they stand in a text.
        spans: an output [batch, tokens, 2] of where each token stands in the text, in characters; "" for none.
        answers_from: the place among the columns of the text that is answered from: `spans` are those of its words,
            and of its tokens only; None: of all tokens but special ones.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self._settings = settings
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(
            settings["max_length"], strategy=settings["truncation"], direction=settings["truncation_side"]
        )
        self._tokenizer.encode_special_tokens = settings["split_special_tokens"]

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return the model's inputs, padded to the longest text of all requests."""
        encoded = self._encoded([self._rows(feed) for feed in feeds])
        whole = [row for rows in encoded if not isinstance(rows, Refusal) for row in rows]
        if not whole:
            return [rows for rows in encoded if isinstance(rows, Refusal)]
        batch = self._filled(whole)
        answers: list[Arrays | Refusal] = []
        begin = 0
        for rows in encoded:
            if isinstance(rows, Refusal):
                answers.append(rows)
                continue
            answers.append({name: array[begin : begin + len(rows)] for name, array in batch.items()})
            begin += len(rows)
        return answers

    def _rows(self, feed: Arrays) -> Rows | Refusal:
        """Return the texts of a request in the tokenizer's input format."""
        columns: list[list[str]] = []
        for name in self._settings["columns"]:
            texts: list[str] = []
            for row, text in enumerate(feed[name].reshape(-1)):
                try:
                    texts.append(text if isinstance(text, str) else bytes(text).decode())
                except UnicodeDecodeError as error:
                    return Refusal(
                        f"{name}, row {row}: byte {error.start} is no UTF-8 ({error.reason}); encode texts in UTF-8"
                    )
            columns.append(texts)
        if self._settings["prompt"]:
            columns[0] = [self._settings["prompt"] + text for text in columns[0]]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _encoded(self, requests: Sequence[Rows | Refusal]) -> list[list[Encoding] | Refusal]:
        """Tokenize all rows in one call; if that fails, each request alone, to find the faulty one.

        A question that leaves no room for its context makes it fail.
        """
        whole = [row for rows in requests if not isinstance(rows, Refusal) for row in rows]
        try:
            left = iter(self._tokens(whole))
        except Exception as error:  # noqa: BLE001 - the tokenizer raises nothing more special
            answered = [rows for rows in requests if not isinstance(rows, Refusal)]
            if len(answered) == 1:
                refusal = Refusal(f"the texts cannot become tokens: {error}")
                return [rows if isinstance(rows, Refusal) else refusal for rows in requests]
            return [rows if isinstance(rows, Refusal) else self._encoded([rows])[0] for rows in requests]
        encodings = [rows if isinstance(rows, Refusal) else [next(left) for _ in rows] for rows in requests]
        return [rows if isinstance(rows, Refusal) else _without_nothing(rows) for rows in encodings]

    def _tokens(self, rows: Rows) -> list[Encoding]:
        if not rows:
            return []
        # Places in the text cost time: they are only counted where somebody asks for them.
        encode = self._tokenizer.encode_batch if self._settings["spans"] else self._tokenizer.encode_batch_fast
        return encode(rows)

    def _filled(self, rows: Sequence[Encoding]) -> dict[str, np.ndarray[Any, Any]]:
        """Pad arrays to one length, on the tokenizer's padding side."""
        counts = [len(row.ids) for row in rows]
        step = self._settings["step"]
        length = -(-max(self._settings["least"], *counts) // step) * step
        begins = [length - count if self._settings["padding_side"] == "left" else 0 for count in counts]
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for name, dtype in self._settings["outputs"].items():
            arrays[name] = np.full((len(rows), length), self._settings["padding"][name], np.dtype(dtype))
            for place, (row, begin, count) in enumerate(zip(rows, begins, counts, strict=True)):
                arrays[name][place, begin : begin + count] = _VALUES[name](row)
        if self._settings["spans"]:
            side = self._settings["answers_from"]
            spans = np.full((len(rows), length, 2), UNPLACED, np.int32)
            for place, (row, begin, count) in enumerate(zip(rows, begins, counts, strict=True)):
                spans[place, begin : begin + count] = token_spans(row) if side is None else word_spans(row, side)
            arrays[self._settings["spans"]] = spans
        return arrays


def _without_nothing(rows: list[Encoding]) -> list[Encoding] | Refusal:
    """Return the rows of a request; refuse it if a row has no tokens, as no model can process that."""
    empty = next((place for place, row in enumerate(rows) if not row.ids), None)
    return rows if empty is None else Refusal(f"row {empty} is empty: the model's tokenizer makes no token of it")
