"""Tokenization of a source model: its tokenizer, its maximum length, and the served part that does the same.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.pipelines.text.kinds import takes_pairs
from plansmith.records.model import AxisRange, OnnxModel, Tensor
from plansmith.records.pipeline import RawOutput
from plansmith.sources.directory import read_json
from plansmith.sources.huggingface.heads import applies_modules
from plansmith.sources.huggingface.processors import read_preprocessors
from plansmith.sources.loaded_model import SEQUENCE, LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]

Texts = Mapping[str, Sequence[str]]
"""Texts by the name of their input."""

_MADE = ("input_ids", "attention_mask", "token_type_ids")
_LENGTH_FILE, _PROMPT_FILE = "sentence_bert_config.json", "config_sentence_transformers.json"
_LEAVE_OUT = "leave `pipeline` out, or name another model"


@dataclass(frozen=True)
class Wording:
    """Tokenization of texts.

    Args:
        tokenizer: the source's own, of transformers.
        columns: the inputs that hold texts, in the order in which clients know them.
        order: the same, in the order in which the tokenizer takes them.
        prompt: stands before every text of the first.
        max_length: most tokens.
        truncation: how what is longer is cut.
        lengths: the numbers of tokens that the graph takes.
        least: fewest tokens of a row as it is served.
    """

    tokenizer: Any
    columns: tuple[str, ...]
    order: tuple[str, ...]
    prompt: str
    max_length: int
    truncation: Literal["longest_first", "only_first", "only_second"]
    lengths: AxisRange
    least: int

    def tokens(self, texts: Texts, tensors: Sequence[Tensor], *, least: int) -> Arrays:
        """Return the inputs of the PyTorch model, by the source's own tokenizer.

        Args:
            texts: a column each.
            tensors: the model's inputs.
            least: fewest tokens of a row.
        """
        names = [tensor.name for tensor in tensors]
        first, second = [self.prompt + text for text in texts[self.order[0]]], None
        if len(self.order) > 1:
            second = list(texts[self.order[1]])
        batch = self.tokenizer(
            first,
            second,
            padding=True,
            truncation=self.truncation,
            max_length=self.max_length,
            return_token_type_ids="token_type_ids" in names,
            return_attention_mask=True,
        )
        length = whole_length(max(least, len(batch["input_ids"][0])), self.lengths.step)
        if length > len(batch["input_ids"][0]):
            batch = self.tokenizer.pad(batch, padding="max_length", max_length=length)
        batch = batch.convert_to_tensors("np")
        return {tensor.name: batch[tensor.name].astype(tensor.dtype) for tensor in tensors}

    def settings(self, outputs: Sequence[Tensor], spans: str, answers_from: int | None) -> dict[str, Any]:
        """Return the settings of the served step (see `pipeline.served.text`)."""
        fills = {
            "input_ids": self.tokenizer.pad_token_id,
            "attention_mask": 0,
            "token_type_ids": self.tokenizer.pad_token_type_id,
        }
        return {
            "columns": self.order,
            "prompt": self.prompt,
            "outputs": {tensor.name: tensor.dtype for tensor in outputs},
            "padding": {tensor.name: fills[tensor.name] for tensor in outputs},
            "padding_side": self.tokenizer.padding_side,
            "max_length": self.max_length,
            "truncation": self.truncation,
            "truncation_side": self.tokenizer.truncation_side,
            "least": self.least,
            "step": self.lengths.step,
            "split_special_tokens": bool(self.tokenizer.split_special_tokens),
            "spans": spans,
            "answers_from": answers_from,
        }

    def write(self, folder: Path) -> None:
        """Write the tokenizer as a file of the `tokenizers` library, without padding and truncation."""
        from tokenizers import Tokenizer

        written = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        written.no_truncation()
        written.no_padding()
        written.save(str(folder / "tokenizer.json"))


def whole_length(length: int, step: int) -> int:
    """Return the next multiple of a step."""
    return -(-length // step) * step


def read_tokenization(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    onnx: OnnxModel,
    *,
    output: RawOutput,
    task: str,
    trust_remote_code: bool,
) -> Wording:
    """Return how a directory's tokenizer makes the graph's inputs.

    Args:
        live: the loaded model.
        folder: its directory.
        options: what the spec says of the pipeline.
        onnx: the graph.
        output: what the pipeline answers with.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: the tokenizer cannot be read, has no fast form, or cannot fill up a batch.
        UsageError: the graph takes what no tokenizer makes, or the longest length does not fit.
    """
    lengths = _lengths(onnx)
    tokenizer = fast_tokenizer(read_preprocessors(folder, trust_remote_code=trust_remote_code).tokenizer, folder)
    if tokenizer.pad_token_id is None:
        raise SourceError(
            f"the tokenizer in {folder.name} has no padding token, so texts of different lengths make no batch",
            remedy="set one and save it again: tokenizer.pad_token = tokenizer.eos_token; tokenizer.save_pretrained(…)",
        )
    embeds = applies_modules(folder, task)
    prompt = _settle_sentences(tokenizer, folder) if embeds else ""
    columns: tuple[str, ...] = ("text",)
    if output == "answer":
        columns = ("question", "context")
    elif output == "labels" and takes_pairs(folder, task):
        columns = ("text", "text_pair")
    reads_first = output == "answer" and tokenizer.padding_side == "left"
    order = columns[::-1] if reads_first else columns
    longest = _longest(tokenizer, live, folder, options, lengths, embeds=embeds)
    room = tokenizer.num_special_tokens_to_add(pair=len(columns) > 1) + len(columns)
    if longest < room:
        raise UsageError(
            f"pipeline.max_length is {longest}, and the tokenizer's own marks leave no room for a word below {room}",
            remedy=f"give max_length at least {room}, and the model that length (`shapes`)",
        )
    return Wording(
        tokenizer=tokenizer,
        columns=columns,
        order=order,
        prompt=prompt,
        max_length=longest,
        truncation="longest_first" if output != "answer" else "only_first" if reads_first else "only_second",
        lengths=lengths,
        least=max(lengths.min, lengths.opt if options.padding == "opt" else lengths.min),
    )


def fast_tokenizer(tokenizer: Any, folder: Path) -> Any:
    """Return the tokenizer if `tokenizers` can run it; transformers converts it on loading if it can.

    Raises:
        SourceError: it cannot.
    """
    problem = "" if getattr(tokenizer, "is_fast", False) else "it is written in Python"
    if not problem:
        try:
            tokenizer.backend_tokenizer.to_str()
        except Exception as error:  # noqa: BLE001 - `tokenizers` raises nothing more special
            problem = first_line(error)
    if problem:
        raise SourceError(
            f"the tokenizer in {folder.name} ({type(tokenizer).__name__}) has no fast form, which is what is served:"
            f" {problem}",
            remedy="save a fast one with the model (tokenizer.json), or leave `pipeline` out",
        )
    return tokenizer


def cleans_up(tokenizer: Any) -> bool:
    """Whether transformers removes spaces before punctuation on decoding with this fast tokenizer; not for BPE."""
    anyway = getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    is_bpe = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    return bool(tokenizer.clean_up_tokenization_spaces) and (not is_bpe or bool(anyway))


def _lengths(onnx: OnnxModel) -> AxisRange:
    """Return the sequence lengths that the graph accepts; raise if its inputs need more than text."""
    inputs = {tensor.name: tensor for tensor in onnx.components["model"].inputs}
    strange = [name for name, tensor in inputs.items() if name not in _MADE or len(tensor.dims) != 2]
    if strange or "input_ids" not in inputs:
        description = ", ".join(strange) or "no input_ids"
        raise UsageError(f"pipeline.input is text, and the model takes {description}", remedy=_LEAVE_OUT)
    dim = inputs["input_ids"].dims[1]
    return AxisRange(min=dim, opt=dim, max=dim) if isinstance(dim, int) else onnx.axes[dim]


def _longest(
    tokenizer: Any, live: LoadedModel, folder: Path, options: PipelineOptions, lengths: AxisRange, *, embeds: bool
) -> int:
    """Return the maximum token count: from the spec, else as tokenizer, model, its authors and the graph permit."""
    if options.max_length is not None:
        if options.max_length > lengths.max:
            raise UsageError(
                f"pipeline.max_length is {options.max_length}, and the model is compiled for at most {lengths.max}",
                remedy=f"give max_length at most {lengths.max}, or longer texts to the model (`shapes`)",
            )
        return options.max_length
    limits: list[int] = [tokenizer.model_max_length, live.inputs.limits.get(SEQUENCE, lengths.max), lengths.max]
    if embeds and (folder / _LENGTH_FILE).is_file():
        limits.append(read_json(folder / _LENGTH_FILE).get("max_seq_length") or lengths.max)
    return min(limits)


def _settle_sentences(tokenizer: Any, folder: Path) -> str:
    """Apply sentence-transformers' lowercasing to the tokenizer; return the prompt that precedes all texts."""
    from tokenizers import normalizers

    length_settings = read_json(folder / _LENGTH_FILE) if (folder / _LENGTH_FILE).is_file() else {}
    if length_settings.get("do_lower_case"):
        backend = tokenizer.backend_tokenizer
        existing = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *existing])
    prompt_settings = read_json(folder / _PROMPT_FILE) if (folder / _PROMPT_FILE).is_file() else {}
    name = prompt_settings.get("default_prompt_name")
    return str((prompt_settings.get("prompts") or {}).get(name) or "") if name else ""
