"""The pipeline around a model of transformers that reads texts. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import UsageError
from plansmith.pipelines.draft import Draft, DraftPart
from plansmith.pipelines.served.text import TextStep
from plansmith.pipelines.text.kinds import TEXTS
from plansmith.pipelines.text.postprocessing import BEHIND, SPANS, TextModel, text_inputs
from plansmith.pipelines.text.reference import ReferenceRunner
from plansmith.pipelines.text.samples import text_questions, with_mask
from plansmith.pipelines.text.tokenization import Wording, read_tokenization
from plansmith.records.model import OnnxModel
from plansmith.sources.loaded_model import LoadedModel


def plan_text(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    onnx: OnnxModel,
    *,
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """What stands around a model so that clients can send texts.

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
    """What puts a mask into a text."""
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
