"""Text reference: the source library's own tokenizer, PyTorch and postprocessing. Runs in the worker.

Served parts are held against this, so nothing here comes from them. Where texts stand in no batch in the library's
own pipeline, each goes to the model by itself and without padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.data.synthetic import sample_texts
from plansmith.pipelines.text.tokenization import Texts, Wording
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


_EMOJI = "Grüße aus Zürich 👩‍🚀🚀: naïve café, 東京は夜, привет\N{COMBINING ACUTE ACCENT}!"
_ROWS = 8
_WORDS = (1, 40, 12, 90, 5, 25)
_MOST_TOKENS_OF_A_WORD = 8

_DIGITS = 6
"""Of a tag's score behind the point."""


def text_questions(
    columns: Sequence[str], *, max_batch: int, longest: int, empty: bool, complete: Callable[[str], str] = str
) -> dict[str, Arrays]:
    """Return text requests by name.

    Args:
        columns: names of the inputs; of a pair, the second text is what is asked about or compared.
        max_batch: most rows of a request.
        longest: most tokens of a text; more are cut off.
        empty: whether an empty text makes tokens.
        complete: makes of a text what the model can be asked, such as one with a mask in it.
    """
    hard = [_EMOJI, sample_texts(1, 3 * longest, offset=5)[0], *([""] if empty else [])]
    mixed = [sample_texts(1, length, offset=3 * length)[0] for length in _WORDS]
    # What is hard stands between usual texts, and so shows what it does to its neighbours.
    rows = [text for pair in zip(mixed, [*hard, *mixed[len(hard) :]], strict=False) for text in pair]
    single = {"one-short": sample_texts(1, 3), "one-long": sample_texts(1, longest // 2, offset=11)}
    named = single | {
        "emoji": hard[:1],
        "very-long": hard[1:2],
        **({"empty": [""]} if empty else {}),
        "mixed": list(dict.fromkeys(rows))[: min(_ROWS, max_batch)],
    }
    return {name: _request(columns, [complete(text) for text in texts]) for name, texts in named.items()}


def with_mask(text: str, *, mask: str, longest: int, truncation_side: str) -> str:
    """Insert a mask in the middle of a text, or at the end that is not truncated if the text may be too long.

    Args:
        text: without one.
        mask: the token's text.
        longest: most tokens of a text.
        truncation_side: "left" or "right": the end that is cut off.
    """
    words = text.split(" ")
    place = len(words) // 2
    if len(words) > longest // _MOST_TOKENS_OF_A_WORD:
        place = len(words) if truncation_side == "left" else 0
    return " ".join(filter(None, [*words[:place], mask, *words[place:]]))


def _request(columns: Sequence[str], texts: Sequence[str]) -> Arrays:
    if len(columns) == 1:
        return {columns[0]: as_texts(texts)}
    firsts = sample_texts(len(texts), 6, offset=17)
    return {columns[0]: as_texts(firsts), columns[1]: as_texts(texts)}


def as_texts(texts: Sequence[str]) -> NDArray[np.generic]:
    """Return texts as an array for requests: [batch, 1] of bytes."""
    import numpy as np

    array = np.empty((len(texts), 1), object)
    array[:, 0] = [text.encode() for text in texts]
    return array


@dataclass(frozen=True)
class ReferenceRunner:
    """Reference runner: the source model with its own tokenizer.

    Args:
        live: the model.
        wording: how its texts become tokens.
    """

    live: LoadedModel
    wording: Wording

    def tensors(self, feed: Arrays) -> Arrays:
        """Return the model's outputs to a complete request, padded to its longest text."""
        texts = {name: [text.decode() for text in feed[name].reshape(-1).tolist()] for name in self.wording.columns}
        return self.live.ask(self.wording.tokens(texts, self.live.inputs.tensors, least=self.wording.least))

    def rows(self, feed: Arrays) -> list[Texts]:
        """Return the texts of every row of a request."""
        names = self.wording.columns
        columns = ([text.decode() for text in feed[name].reshape(-1).tolist()] for name in names)
        return [dict(zip(names, ([text] for text in row), strict=True)) for row in zip(*columns, strict=True)]

    def alone(self, texts: Texts) -> dict[str, NDArray[np.generic]]:
        """Return the model's outputs to a single row."""
        return self.live.ask(self.wording.tokens(texts, self.live.inputs.tensors, least=self.wording.lengths.min))

    def library_pipeline(self, kind: str) -> Any:
        """Return a transformers pipeline around the model, by its class name."""
        import transformers

        module: Any = self.live.module  # its `model` is that of transformers
        pipeline_class = getattr(transformers, kind)
        return pipeline_class(model=module.model, tokenizer=self.wording.tokenizer, device=self.live.device)


def infer_tensors(asking: ReferenceRunner, names: Mapping[str, str]) -> Callable[[Arrays], Arrays]:
    """Return the model's own outputs.

    Args:
        asking: the source.
        names: outputs of the model, and what they are called in the answer.
    """

    def ask(feed: Arrays) -> Arrays:
        answer = asking.tensors(feed)
        return {alias: answer[name] for name, alias in names.items()}

    return ask


def infer_pooled(asking: ReferenceRunner, output: str, mode: str) -> Callable[[Arrays], Arrays]:
    """Return the token vectors of the model, pooled in PyTorch as sentence-transformers does.

    Args:
        asking: the source.
        output: the token vectors.
        mode: of `pooling`.
    """
    import torch

    from plansmith.sources.huggingface.heads import pool

    def ask(feed: Arrays) -> Arrays:
        rows = []
        for texts in asking.rows(feed):
            tokens = torch.from_numpy(asking.alone(texts)[output])
            batch = asking.wording.tokens(texts, asking.live.inputs.tensors, least=asking.wording.lengths.min)
            mask = torch.from_numpy(batch["attention_mask"]) if "attention_mask" in batch else None
            rows.append(pool(mode, tokens, mask))
        return {"sentence_embedding": torch.cat(rows).numpy()}

    return ask


def infer_labels(asking: ReferenceRunner, output: str, top_k: int, function: str | None) -> Callable[[Arrays], Arrays]:
    """Return labels by transformers' text classification.

    Args:
        asking: the source.
        output: the logits.
        top_k: how many labels an answer has.
        function: what makes scores of logits; None: as the pipeline decides.
    """
    import numpy as np
    import torch
    from transformers.pipelines.text_classification import ClassificationFunction

    library = asking.library_pipeline("TextClassificationPipeline")
    chosen = None if function is None else ClassificationFunction(function)

    def ask(feed: Arrays) -> Arrays:
        answers = []
        for texts in asking.rows(feed):
            logits = torch.from_numpy(asking.alone(texts)[output])
            answers.append(
                library.postprocess({"logits": logits}, function_to_apply=chosen, top_k=top_k, _legacy=False)
            )
        labels = np.concatenate([as_texts([entry["label"] for entry in row]).T for row in answers])
        return {"label": labels, "score": np.array([[entry["score"] for entry in row] for row in answers], np.float32)}

    return ask


def infer_scores(
    asking: ReferenceRunner, output: str, names: Sequence[str], function: str | None
) -> Callable[[Arrays], Arrays]:
    """Return the scores of all classes by transformers' text classification, in name order; as `infer_labels`."""
    import numpy as np

    ask_all = infer_labels(asking, output, len(names), function)

    def ask(feed: Arrays) -> Arrays:
        answer = ask_all(feed)
        rows = zip(answer["label"], answer["score"], strict=True)
        by_label = [dict(zip((label.decode() for label in labels), scores, strict=True)) for labels, scores in rows]
        return {"score": np.array([[row[name] for name in names] for row in by_label], np.float32)}

    return ask


def infer_tags(asking: ReferenceRunner, output: str) -> Callable[[Arrays], Arrays]:
    """Return entities by transformers' token classification, aggregation_strategy="simple"."""
    import torch
    from transformers.pipelines.token_classification import AggregationStrategy

    library = asking.library_pipeline("TokenClassificationPipeline")
    names = [tensor.name for tensor in asking.live.inputs.tensors]
    options = {
        "max_length": asking.wording.max_length,
        "return_token_type_ids": "token_type_ids" in names,
        "return_attention_mask": True,
    }

    def entities(text: str) -> list[dict[str, Any]]:
        (encoding,) = library.preprocess(text, is_split_into_words=False, tokenizer_params=dict(options))
        logits = torch.from_numpy(asking.alone({"text": [text]})[output])
        count = encoding["input_ids"].shape[1]
        # Rows are filled up where the model takes no length as short as theirs.
        left = asking.wording.tokenizer.padding_side == "left"
        token_logits = logits[:, logits.shape[1] - count :] if left else logits[:, :count]
        tags: list[dict[str, Any]] = library.postprocess(
            [{**encoding, "logits": token_logits}], aggregation_strategy=AggregationStrategy.SIMPLE
        )
        return [entity | {"score": round(float(entity["score"]), _DIGITS)} for entity in tags]

    def ask(feed: Arrays) -> Arrays:
        rows = [entities(text.decode()) for text in feed["text"].reshape(-1).tolist()]
        return {"entities": as_texts([json.dumps(row, ensure_ascii=False) for row in rows])}

    return ask


def infer_fill_mask(asking: ReferenceRunner, top_k: int) -> Callable[[Arrays], Arrays]:
    """Return tokens for masks by transformers' fill-mask pipeline, each text separately.

    Args:
        asking: the source.
        top_k: how many tokens an answer has.
    """
    import numpy as np

    library = asking.library_pipeline("FillMaskPipeline")
    options = {"truncation": True, "max_length": asking.wording.max_length}

    def ask(feed: Arrays) -> Arrays:
        texts = [text.decode() for text in feed["text"].reshape(-1).tolist()]
        rows = [library(text, top_k=top_k, tokenizer_kwargs=options) for text in texts]
        columns = {"token": "token_str", "sequence": "sequence"}
        return {
            name: np.concatenate([as_texts([candidate[key] for candidate in row]).T for row in rows])
            for name, key in columns.items()
        } | {"score": np.array([[candidate["score"] for candidate in row] for row in rows], np.float32)}

    return ask


def infer_answers(asking: ReferenceRunner, starts: str, ends: str) -> Callable[[Arrays], Arrays]:
    """Return answers by the rules of transformers 4's question answering, whose pipeline later releases lack.

    Written out plainly: every span of at most fifteen tokens of the context, the twelve likeliest of them, each widened
    to whole words, those of the same words counted together.
    """
    import numpy as np

    def ask(feed: Arrays) -> Arrays:
        answers = [_answer(asking, texts, starts, ends) for texts in asking.rows(feed)]
        return {
            "answer": as_texts([row[0] for row in answers]),
            "score": np.array([[row[1]] for row in answers], np.float32),
            "start": np.array([[row[2]] for row in answers], np.int32),
            "end": np.array([[row[3]] for row in answers], np.int32),
        }

    return ask


_LONGEST_ANSWER, _LIKELIEST = 15, 12


def _answer(asking: ReferenceRunner, texts: Texts, starts: str, ends: str) -> tuple[str, float, int, int]:
    import torch

    wording = asking.wording
    columns = [list(texts[name]) for name in wording.order]
    batch = wording.tokenizer(*columns, truncation=wording.truncation, max_length=wording.max_length)
    encoding, side = batch.encodings[0], wording.order.index("context")
    answer = asking.alone(texts)
    count = len(encoding.ids)
    begin = answer[starts].shape[1] - count if wording.tokenizer.padding_side == "left" else 0
    context = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == side]
    classes = [place for place, number in enumerate(encoding.ids) if number == wording.tokenizer.cls_token_id]
    sharing = sorted({*context, *classes})
    shares = []
    for name in (starts, ends):
        logits = torch.from_numpy(answer[name][0, begin : begin + count]).double()
        of_all = torch.softmax(logits[sharing], dim=0).tolist() if sharing else []
        shares.append(dict(zip(sharing, of_all, strict=True)))
    spans = [
        (shares[0][first] * shares[1][last], first, last)
        for first in context
        for last in context
        if first <= last < first + _LONGEST_ANSWER
    ]
    return _merged(sorted(spans, key=lambda span: -span[0])[:_LIKELIEST], encoding, side, texts["context"][0])


def _merged(
    spans: Sequence[tuple[float, int, int]], encoding: Any, side: int, context: str
) -> tuple[str, float, int, int]:
    """Return the best token span, as text, score, begin and end."""
    answers: dict[str, tuple[str, float, int, int]] = {}
    for score, first, last in spans:
        word_indices = [encoding.token_to_word(token) for token in (first, last)]
        if None in word_indices:
            low, high = encoding.offsets[first][0], encoding.offsets[last][1]
        else:
            low, high = (encoding.word_to_chars(word, side)[end] for end, word in enumerate(word_indices))
        text = context[low:high]
        entry = answers.get(text.lower(), (text, 0.0, low, high))
        answers[text.lower()] = (entry[0], entry[1] + score, *entry[2:])
    return max(answers.values(), key=lambda answer: answer[1], default=("", 0.0, 0, 0))
