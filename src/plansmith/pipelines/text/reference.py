"""What the source's own library answers to texts: its tokenizer, PyTorch, its postprocessing. Runs in the worker.

Served parts are held against this, so nothing here comes from them. Where texts stand in no batch in the library's
own pipeline, each goes to the model by itself and without padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.pipelines.text.samples import as_texts
from plansmith.pipelines.text.tokenization import Texts, Wording
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_DIGITS = 6
"""Of a tag's score behind the point."""


@dataclass(frozen=True)
class ReferenceRunner:
    """The source model with its own tokenizer.

    Args:
        live: the model.
        wording: how its texts become tokens.
    """

    live: LoadedModel
    wording: Wording

    def tensors(self, feed: Arrays) -> Arrays:
        """The model's outputs to a whole request, filled up to its longest text."""
        texts = {name: [text.decode() for text in feed[name].reshape(-1).tolist()] for name in self.wording.columns}
        return self.live.ask(self.wording.tokens(texts, self.live.inputs.tensors, least=self.wording.least))

    def rows(self, feed: Arrays) -> list[Texts]:
        """The texts of every row of a request."""
        names = self.wording.columns
        columns = ([text.decode() for text in feed[name].reshape(-1).tolist()] for name in names)
        return [dict(zip(names, ([text] for text in row), strict=True)) for row in zip(*columns, strict=True)]

    def alone(self, texts: Texts) -> dict[str, NDArray[np.generic]]:
        """The model's outputs to one row."""
        return self.live.ask(self.wording.tokens(texts, self.live.inputs.tensors, least=self.wording.lengths.min))

    def library_pipeline(self, kind: str) -> Any:
        """A pipeline of transformers around the model, by the name of its class."""
        import transformers

        module: Any = self.live.module  # its `model` is that of transformers
        made = getattr(transformers, kind)
        return made(model=module.model, tokenizer=self.wording.tokenizer, device=self.live.device)


def infer_tensors(asking: ReferenceRunner, names: Mapping[str, str]) -> Callable[[Arrays], Arrays]:
    """The model's own outputs.

    Args:
        asking: the source.
        names: outputs of the model, and what they are called in the answer.
    """

    def ask(feed: Arrays) -> Arrays:
        answer = asking.tensors(feed)
        return {given: answer[name] for name, given in names.items()}

    return ask


def infer_pooled(asking: ReferenceRunner, output: str, mode: str) -> Callable[[Arrays], Arrays]:
    """Token vectors of the model, pooled in PyTorch as sentence-transformers does it.

    Args:
        asking: the source.
        output: the token vectors.
        mode: of `pooling`.
    """
    import torch

    from plansmith.sources.huggingface.pooling import pool

    def ask(feed: Arrays) -> Arrays:
        rows = []
        for texts in asking.rows(feed):
            tokens = torch.from_numpy(asking.alone(texts)[output])
            made = asking.wording.tokens(texts, asking.live.inputs.tensors, least=asking.wording.lengths.min)
            mask = torch.from_numpy(made["attention_mask"]) if "attention_mask" in made else None
            rows.append(pool(mode, tokens, mask))
        return {"sentence_embedding": torch.cat(rows).numpy()}

    return ask


def infer_labels(asking: ReferenceRunner, output: str, top_k: int, function: str | None) -> Callable[[Arrays], Arrays]:
    """Labels by transformers' text classification.

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
        found = []
        for texts in asking.rows(feed):
            logits = torch.from_numpy(asking.alone(texts)[output])
            found.append(library.postprocess({"logits": logits}, function_to_apply=chosen, top_k=top_k, _legacy=False))
        labels = np.concatenate([as_texts([one["label"] for one in row]).T for row in found])
        return {"label": labels, "score": np.array([[one["score"] for one in row] for row in found], np.float32)}

    return ask


def infer_scores(
    asking: ReferenceRunner, output: str, names: Sequence[str], function: str | None
) -> Callable[[Arrays], Arrays]:
    """Scores of all classes by transformers' text classification, in the order of their names; as `infer_labels`."""
    import numpy as np

    ask_all = infer_labels(asking, output, len(names), function)

    def ask(feed: Arrays) -> Arrays:
        answer = ask_all(feed)
        rows = zip(answer["label"], answer["score"], strict=True)
        by_label = [dict(zip((label.decode() for label in labels), scores, strict=True)) for labels, scores in rows]
        return {"score": np.array([[row[name] for name in names] for row in by_label], np.float32)}

    return ask


def infer_tags(asking: ReferenceRunner, output: str) -> Callable[[Arrays], Arrays]:
    """Entities by transformers' token classification, aggregation_strategy="simple"."""
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
        (made,) = library.preprocess(text, is_split_into_words=False, tokenizer_params=dict(options))
        logits = torch.from_numpy(asking.alone({"text": [text]})[output])
        count = made["input_ids"].shape[1]
        # Rows are filled up where the model takes no length as short as theirs.
        left = asking.wording.tokenizer.padding_side == "left"
        kept = logits[:, logits.shape[1] - count :] if left else logits[:, :count]
        found: list[dict[str, Any]] = library.postprocess(
            [{**made, "logits": kept}], aggregation_strategy=AggregationStrategy.SIMPLE
        )
        return [one | {"score": round(float(one["score"]), _DIGITS)} for one in found]

    def ask(feed: Arrays) -> Arrays:
        rows = [entities(text.decode()) for text in feed["text"].reshape(-1).tolist()]
        return {"entities": as_texts([json.dumps(row, ensure_ascii=False) for row in rows])}

    return ask


def infer_fill_mask(asking: ReferenceRunner, top_k: int) -> Callable[[Arrays], Arrays]:
    """Tokens for masks by transformers' fill-mask pipeline, each text by itself.

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
            name: np.concatenate([as_texts([one[key] for one in row]).T for row in rows])
            for name, key in columns.items()
        } | {"score": np.array([[one["score"] for one in row] for row in rows], np.float32)}

    return ask


def infer_answers(asking: ReferenceRunner, starts: str, ends: str) -> Callable[[Arrays], Arrays]:
    """Answers by the rules of transformers 4's question answering, which later releases have no pipeline for.

    Written out plainly: every span of at most fifteen tokens of the context, the twelve likeliest of them, each widened
    to whole words, those of the same words counted together.
    """
    import numpy as np

    def ask(feed: Arrays) -> Arrays:
        found = [_answer(asking, texts, starts, ends) for texts in asking.rows(feed)]
        return {
            "answer": as_texts([row[0] for row in found]),
            "score": np.array([[row[1]] for row in found], np.float32),
            "start": np.array([[row[2]] for row in found], np.int32),
            "end": np.array([[row[3]] for row in found], np.int32),
        }

    return ask


_LONGEST_ANSWER, _LIKELIEST = 15, 12


def _answer(asking: ReferenceRunner, texts: Texts, starts: str, ends: str) -> tuple[str, float, int, int]:
    import torch

    wording = asking.wording
    columns = [list(texts[name]) for name in wording.order]
    made = wording.tokenizer(*columns, truncation=wording.truncation, max_length=wording.max_length)
    encoding, side = made.encodings[0], wording.order.index("context")
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
    """The best of spans of tokens, as text, score, begin and end."""
    answers: dict[str, tuple[str, float, int, int]] = {}
    for score, first, last in spans:
        words = [encoding.token_to_word(token) for token in (first, last)]
        if None in words:
            low, high = encoding.offsets[first][0], encoding.offsets[last][1]
        else:
            low, high = (encoding.word_to_chars(word, side)[end] for end, word in enumerate(words))
        text = context[low:high]
        known = answers.get(text.lower(), (text, 0.0, low, high))
        answers[text.lower()] = (known[0], known[1] + score, *known[2:])
    return max(answers.values(), key=lambda one: one[1], default=("", 0.0, 0, 0))
