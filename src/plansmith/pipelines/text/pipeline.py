"""Text pipelines for transformers models. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.draft import Draft, DraftPart, Scoring, labels_part, scores_part
from plansmith.pipelines.served.postprocessing.answers import ANSWER, END, SCORE, START, AnswersStep
from plansmith.pipelines.served.postprocessing.fill_mask import SEQUENCE, TOKEN, FillMaskStep
from plansmith.pipelines.served.postprocessing.pooling import EMBEDDING, PoolingStep
from plansmith.pipelines.served.postprocessing.tags import ENTITIES, TagsStep
from plansmith.pipelines.served.text import TextStep
from plansmith.pipelines.text.kinds import TEXTS
from plansmith.pipelines.text.reference import (
    ReferenceRunner,
    infer_answers,
    infer_fill_mask,
    infer_labels,
    infer_pooled,
    infer_scores,
    infer_tags,
    infer_tensors,
    text_questions,
    with_mask,
)
from plansmith.pipelines.text.tokenization import Wording, cleans_up, read_tokenization
from plansmith.records.model import BATCH, Component, OnnxModel, Tensor
from plansmith.records.pipeline import RawOutput
from plansmith.sources.directory import read_json
from plansmith.sources.huggingface.heads import MODULES_FILE, pooling_of
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays


SPANS = "spans"
"""The tensor that tells where tokens stand in their text."""


@dataclass(frozen=True)
class Behind:
    """Postprocessing of a model: its parts, the clients' outputs, and the reference for comparison.

    `spans`: whether a part wants to know where tokens stand; `library`: what the source's library does there, in words;
    `labels`: as in `Draft`.
    """

    parts: tuple[DraftPart, ...]
    outputs: tuple[Tensor, ...]
    ask: Callable[[Arrays], Arrays]
    library: str
    spans: bool = False
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class TextModel:
    """Text model as the pipeline parts use it."""

    asking: ReferenceRunner
    component: Component
    folder: Path
    task: str
    options: PipelineOptions

    @property
    def wording(self) -> Wording:
        """The tokenization of its texts."""
        return self.asking.wording

    @property
    def config(self) -> Any:
        """The transformers configuration."""
        module: Any = self.asking.live.module
        return module.model.config

    @property
    def ids(self) -> Tensor:
        """The input that holds token ids."""
        return next(tensor for tensor in self.component.inputs if tensor.name == "input_ids")

    @property
    def spans(self) -> Tensor:
        """The offsets of tokens in their text."""
        return Tensor(name=SPANS, dtype="int32", dims=(*self.ids.dims, 2))

    def output(self, name: str, rank: int) -> Tensor:
        """Return one of the model's outputs; raises if it does not exist."""
        tensor = next((t for t in self.component.outputs if t.name == name and len(t.dims) == rank), None)
        if tensor is None:
            listed = ", ".join(f"{t.name} [{', '.join(map(str, t.dims))}]" for t in self.component.outputs)
            raise UsageError(
                f"pipeline.output needs the model's {name}, and its outputs are {listed}",
                remedy=f"leave {name} among the spec's `outputs`, or write output: tensors under `pipeline`",
            )
        return tensor


def text_inputs(wording: Wording) -> tuple[Tensor, ...]:
    """Return the inputs that clients send."""
    return tuple(Tensor(name=name, dtype="string", dims=(BATCH, 1)) for name in wording.columns)


def _tensors(model: TextModel) -> Behind:
    names = {tensor.name: tensor.name for tensor in model.component.outputs}
    return Behind((), model.component.outputs, infer_tensors(model.asking, names), "")


def _embedding(model: TextModel) -> Behind:
    """Return the model's own embedding, or one pooled from its token vectors as its directory specifies."""
    outputs = {tensor.name: tensor for tensor in model.component.outputs}
    pooled = [tensor for tensor in outputs.values() if len(tensor.dims) == 2 and tensor.dtype.startswith("float")]
    mode = pooling_of(model.folder, model.task, tuple(outputs))
    if EMBEDDING in outputs:
        return _as_it_is(model, outputs[EMBEDDING])
    if (model.folder / MODULES_FILE).is_file():
        _require_plain(model.folder, mode)
    elif pooled:
        return _as_it_is(model, pooled[0])
    tokens = model.output("last_hidden_state", 3)
    mask = next((tensor for tensor in model.component.inputs if tensor.name == "attention_mask"), None)
    chosen = "first" if mode == "first" else "mean"
    vector = Tensor(name=EMBEDDING, dtype="float32", dims=(BATCH, tokens.dims[2]))
    part = DraftPart(
        name="pooling",
        step=PoolingStep,
        settings={"tokens": tokens.name, "mask": mask and mask.name, "mode": chosen},
        inputs=(tokens, *([mask] if mask else [])),
        outputs=(vector,),
    )
    ask = infer_pooled(model.asking, tokens.name, {"first": "cls", "mean": "mean"}[chosen])
    return Behind((part,), (vector,), ask, f", {'the first' if chosen == 'first' else 'the mean'} of the token vectors")


def _as_it_is(model: TextModel, vector: Tensor) -> Behind:
    return Behind((), (vector,), infer_tensors(model.asking, {vector.name: vector.name}), "")


def _require_plain(folder: Path, mode: str | None) -> None:
    """Check that plain pooling is all that sentence-transformers adds to the token vectors."""
    kinds = [str(row.get("type", "")).rpartition(".")[2] for row in read_json(folder / MODULES_FILE)]
    if mode not in {"mean", "first"} or kinds[1:] != ["Pooling"]:
        raise UsageError(
            f"pipeline.output is embedding, and the graph leaves out what {folder.name} makes of its token vectors"
            f" ({', '.join(kinds[1:])})",
            remedy="leave `task` and `outputs` out, so that it is compiled with the model",
        )


def _labels(model: TextModel) -> Behind:
    logits = model.output("logits", 2)
    label_names = {int(number): str(name) for number, name in (model.config.id2label or {}).items()}
    count = logits.dims[1] if isinstance(logits.dims[1], int) else len(label_names)
    names = [label_names.get(number, f"LABEL_{number}") for number in range(count)]
    own = _own_scoring(model.config)
    scoring, library = own or _scoring(model.config), ", scores of its text-classification pipeline"
    if model.options.frontend:
        _require_label_lines(names)
        part = scores_part(logits, names, scoring=scoring)
        ask = infer_scores(model.asking, logits.name, names, own)
        return Behind((part,), part.outputs, ask, library, labels={SCORE: tuple(names)})
    part = labels_part(logits, names, scoring=scoring, top_k=model.options.top_k)
    ask = infer_labels(model.asking, logits.name, min(model.options.top_k, count), own)
    return Behind((part,), part.outputs, ask, library)


def _require_label_lines(names: Sequence[str]) -> None:
    """Check that class names fit a label file: one line each, and distinct."""
    wrong = next((name for name in names if not name.strip() or "\n" in name or names.count(name) > 1), None)
    if wrong is not None:
        raise UsageError(
            f"a frontend tells classes by their names, and one is {wrong!r}, which is empty, has two lines or is there"
            " twice",
            remedy="give each class of the model's id2label a name of its own, or leave `frontend` out of `pipeline`",
        )


def _own_scoring(config: Any) -> Scoring | None:
    """Return the activation that sentence-transformers stored for a one-logit cross-encoder; None without one."""
    function_name = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    function_name = function_name or getattr(config, "sbert_ce_default_activation_function", None)
    if config.num_labels != 1 or not function_name:
        return None
    scorings: dict[str, Scoring] = {"Identity": "none", "Sigmoid": "sigmoid"}
    return scorings.get(str(function_name).rpartition(".")[2])


def _scoring(config: Any) -> Scoring:
    """Return how transformers turns a classifier's logits into scores."""
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"


def _tags(model: TextModel) -> Behind:
    logits = model.output("logits", 3)
    labels = {int(number): str(name) for number, name in model.config.id2label.items()}
    tokenizer = model.wording.tokenizer
    entities = Tensor(name=ENTITIES, dtype="string", dims=(BATCH, 1))
    part = DraftPart(
        name="tags",
        step=TagsStep,
        settings={
            "logits": logits.name,
            "ids": model.ids.name,
            "spans": SPANS,
            "text": "text",
            "labels": [labels.get(number, f"LABEL_{number}") for number in range(model.config.num_labels)],
            "unknown": tokenizer.unk_token_id,
        },
        inputs=(logits, model.ids, model.spans, *text_inputs(model.wording)),
        outputs=(entities,),
        modules=("postprocessing.labels",),
        requirements=("tokenizers",),
        write=model.wording.write,
    )
    ask = infer_tags(model.asking, logits.name)
    return Behind((part,), (entities,), ask, ", its token-classification pipeline (simple aggregation)", spans=True)


def _answer(model: TextModel) -> Behind:
    starts, ends = model.output("start_logits", 2), model.output("end_logits", 2)
    outputs = (
        Tensor(name=ANSWER, dtype="string", dims=(BATCH, 1)),
        Tensor(name=SCORE, dtype="float32", dims=(BATCH, 1)),
        Tensor(name=START, dtype="int32", dims=(BATCH, 1)),
        Tensor(name=END, dtype="int32", dims=(BATCH, 1)),
    )
    context = next(tensor for tensor in text_inputs(model.wording) if tensor.name == "context")
    part = DraftPart(
        name="answer",
        step=AnswersStep,
        settings={
            "starts": starts.name,
            "ends": ends.name,
            "ids": model.ids.name,
            "spans": SPANS,
            "context": context.name,
            "nothing": model.wording.tokenizer.cls_token_id,
        },
        inputs=(starts, ends, model.ids, model.spans, context),
        outputs=outputs,
        modules=("postprocessing.labels",),
    )
    ask = infer_answers(model.asking, starts.name, ends.name)
    return Behind((part,), outputs, ask, ", the rules of transformers 4's question answering", spans=True)


def _fill_mask(model: TextModel) -> Behind:
    logits, tokenizer = model.output("logits", 3), model.wording.tokenizer
    if tokenizer.mask_token_id is None:
        raise SourceError(
            f"pipeline.output is fill-mask, and the tokenizer in {model.folder.name} has no mask token",
            remedy="set mask_token in tokenizer_config.json, or write output: tensors under `pipeline`",
        )
    size = logits.dims[2] if isinstance(logits.dims[2], int) else len(tokenizer)
    count = min(model.options.top_k, size)
    outputs = (
        Tensor(name=TOKEN, dtype="string", dims=(BATCH, count)),
        Tensor(name=SCORE, dtype="float32", dims=(BATCH, count)),
        Tensor(name=SEQUENCE, dtype="string", dims=(BATCH, count)),
    )
    part = DraftPart(
        name="fill-mask",
        step=FillMaskStep,
        settings={
            "logits": logits.name,
            "ids": model.ids.name,
            "mask": tokenizer.mask_token_id,
            "mask_token": tokenizer.mask_token,
            "padding": tokenizer.pad_token_id,
            "top_k": count,
            "cleaned": cleans_up(tokenizer),
        },
        inputs=(logits, model.ids),
        outputs=outputs,
        modules=("postprocessing.labels", "postprocessing.decoding"),
        requirements=("tokenizers",),
        write=model.wording.write,
    )
    return Behind((part,), outputs, infer_fill_mask(model.asking, count), ", its fill-mask pipeline")


BEHIND: dict[RawOutput, Callable[[TextModel], Behind]] = {
    "tensors": _tensors,
    "embedding": _embedding,
    "labels": _labels,
    "tags": _tags,
    "answer": _answer,
    "fill-mask": _fill_mask,
}
"""What follows a model, by what the pipeline answers with."""


def plan_text(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    onnx: OnnxModel,
    *,
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """Plan the pipeline of a model whose clients send texts.

    Args:
        live: the source model in FP32.
        folder: its directory.
        options: what the spec says of the pipeline.
        onnx: the graph that is served, or the interface of the model that is served as PyTorch.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: there is no tokenizer that can be served.
        UsageError: the model does not make what the spec asks for, or takes more than texts.
    """
    output = TEXTS.refuse("hf", folder, options, task=task)
    if output not in BEHIND:
        raise UsageError(
            f"pipeline.output is {output}, which this model's tokens are not enough for",
            remedy="write output: tensors under `pipeline`, or leave `pipeline` out",
        )
    wording = read_tokenization(
        live, folder, options, onnx, output=output, task=task, trust_remote_code=trust_remote_code
    )
    if options.frontend and len(wording.columns) > 1:
        raise UsageError(
            f"pipeline.frontend is {options.frontend}, which asks for one text, and the model takes"
            f" {' and '.join(wording.columns)}",
            remedy="leave `frontend` out of `pipeline`",
        )
    model = TextModel(ReferenceRunner(live, wording), onnx.components["model"], folder, task, options)
    behind = BEHIND[output](model)
    return Draft(
        input="text",
        output=output,
        before=(_text_part(model, spans=behind.spans),),
        after=behind.parts,
        inputs=text_inputs(wording),
        outputs=behind.outputs,
        questions=text_questions(
            wording.columns,
            max_batch=_max_batch(model, onnx),
            longest=wording.max_length,
            empty=len(wording.columns) > 1 or bool(wording.tokenizer("")["input_ids"]),
            complete=_completion(wording) if output == "fill-mask" else str,
        ),
        ask=behind.ask,
        source=f"{_release()}: its tokenizer, PyTorch in FP32{behind.library}",
        labels=behind.labels,
    )


def _completion(wording: Wording) -> Callable[[str], str]:
    """Return a function that inserts a mask into a text."""
    tokenizer = wording.tokenizer
    return partial(
        with_mask,
        mask=tokenizer.mask_token,
        longest=wording.max_length,
        truncation_side=tokenizer.truncation_side,
    )


def _release() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


def _max_batch(model: TextModel, onnx: OnnxModel) -> int:
    dim = model.ids.dims[0]
    return dim if isinstance(dim, int) else onnx.axes[dim].max


def _text_part(model: TextModel, *, spans: bool) -> DraftPart:
    wording = model.wording
    answers_from = wording.order.index("context") if "context" in wording.order else None
    return DraftPart(
        name="text",
        step=TextStep,
        settings=wording.settings(model.component.inputs, SPANS if spans else "", answers_from),
        inputs=text_inputs(wording),
        outputs=(*model.component.inputs, *([model.spans] if spans else [])),
        modules=("spans",),
        requirements=("tokenizers",),
        write=wording.write,
    )
