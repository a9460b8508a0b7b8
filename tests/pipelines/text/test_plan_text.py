"""The pipeline around a model that reads texts follows from its directory, and answers as the source's library does."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import PlansmithError, SourceError, UsageError
from plansmith.pipelines.served.requests import Refusal
from plansmith.pipelines.text.kinds import TEXTS, takes_pairs, text_output
from plansmith.pipelines.text.tokenization import fast_tokenizer
from plansmith.records.model import AxisRange

from ...support.models.architectures import save
from ...support.pipelines.columns import column
from ...support.pipelines.texts import (
    REQUESTS,
    SENTENCES,
    SIZES,
    Arrays,
    Served,
    bert,
    byte_level,
    close,
    minilm,
    roberta,
    serve,
    word_piece,
)


def sentence_transformer(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SentenceTransformer(str(folder), device="cpu")


def agree(owed: Arrays, actual: Arrays, tolerance: float = 2e-6) -> None:
    assert owed.keys() == actual.keys()
    for name, array in owed.items():
        assert actual[name].shape == array.shape
        if name == "entities":
            for (text,), (actual_text,) in zip(array, actual[name], strict=True):
                ours, theirs = json.loads(actual_text.decode()), json.loads(text.decode())
                assert [entity | {"score": 0} for entity in ours] == [entity | {"score": 0} for entity in theirs]
                close([entity["score"] for entity in ours], [entity["score"] for entity in theirs], tolerance)
        elif array.dtype == object:
            assert actual[name].tolist() == array.tolist()
        else:
            close(actual[name], array, atol=tolerance)


def agrees_everywhere(served: Served) -> None:
    """Every question, each alone and all in one execution, is answered as the source's library does it."""
    questions = served.draft.questions
    together = served.answers(list(questions.values()))
    for (name, question), answer in zip(questions.items(), together, strict=True):
        assert not isinstance(answer, Refusal), name
        owed = served.draft.ask(question)
        agree(owed, answer)
        agree(owed, served.answer(question))


@pytest.mark.slow
def test_minilm_embeddings_match_library(tmp_path: Path) -> None:
    """MiniLM embeds 256 sentences as sentence-transformers does."""
    served = serve(minilm(), tmp_path)
    assert served.draft.output == "embedding"
    assert served.draft.after == ()
    assert [(tensor.name, tensor.dims) for tensor in served.draft.outputs] == [("sentence_embedding", ("batch", 384))]
    assert served.draft.before[0].settings["max_length"] == 256  # its authors' own, of 512 that it has positions for
    answers = served.answers([{"text": column(*texts)} for texts in REQUESTS])
    expected = sentence_transformer(minilm()).encode(list(SENTENCES), batch_size=64)
    vectors = np.concatenate([answer["sentence_embedding"] for answer in answers if not isinstance(answer, Refusal)])
    close(vectors, expected, atol=2e-6)


@pytest.mark.slow
def test_hard_questions_match_library(tmp_path: Path) -> None:
    """MiniLM's hard questions are answered as the library answers them."""
    served = serve(minilm(), tmp_path)
    assert list(served.draft.questions) == ["one-short", "one-long", "emoji", "very-long", "empty", "mixed"]
    mixed = [text.decode() for text in served.draft.questions["mixed"]["text"].reshape(-1).tolist()]
    assert "" in mixed
    assert len(word_piece()(max(mixed, key=len))["input_ids"]) > 256
    agrees_everywhere(served)
    model = sentence_transformer(minilm())
    for question in served.draft.questions.values():
        texts = [text.decode() for text in question["text"].reshape(-1).tolist()]
        close(served.draft.ask(question)["sentence_embedding"], model.encode(texts), atol=2e-6)


@pytest.mark.slow
def test_padding_changes_no_answer(tmp_path: Path) -> None:
    """Padding to the usual length changes lengths and no answer."""
    served = serve(minilm(), tmp_path, padding="opt")
    part = served.draft.before[0]
    (tensors,) = served.step(part).answer([{"text": column("a cat")}])
    assert tensors["input_ids"].shape == (1, 128)
    agrees_everywhere(served)


def published(folder: Path, *behind: Any, **changed: Any) -> Path:
    """A small encoder that sentence-transformers saved with modules behind it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    encoder = bert(folder / "encoder", "Model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(modules=[Transformer(str(encoder)), *behind], **changed)
        model.save(str(folder / "model"))
    return folder / "model"


def test_prompt_and_lowercase_from_directory(tmp_path: Path) -> None:
    """A prompt and lower case are the directory's own."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    configuration = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    folder = published(tmp_path, Pooling(32, "mean"), **configuration)
    file = folder / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_seq_length": 24, "do_lower_case": True}))
    served = serve(folder, tmp_path / "out")
    settings = served.draft.before[0].settings
    assert (settings["prompt"], settings["max_length"]) == ("query: ", 24)
    texts = [*SENTENCES[:20], "SHOUTING"]
    answer = served.answer({"text": column(*texts)})["sentence_embedding"]
    close(answer, sentence_transformer(folder).encode(texts), atol=2e-6)
    agrees_everywhere(served)


@pytest.mark.parametrize(("mode", "served_as"), [("mean", "mean"), ("cls", "first")])
def test_token_vectors_pooled_behind_model(mode: str, served_as: str, tmp_path: Path) -> None:
    """Token vectors are pooled behind the model as its directory says."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder = published(tmp_path, Pooling(32, mode))
    served = serve(folder, tmp_path / "out", task="feature-extraction")
    assert served.draft.after[0].settings["mode"] == served_as
    texts = list(SENTENCES[:20])
    answer = served.answer({"text": column(*texts)})["sentence_embedding"]
    close(answer, sentence_transformer(folder).encode(texts), atol=2e-6)
    agrees_everywhere(served)


def test_mean_without_pooled_output(tmp_path: Path) -> None:
    """Without a pooled output the mean is taken."""
    folder = bert(tmp_path / "model", "Model")
    served = serve(folder, tmp_path / "out", outputs=("last_hidden_state",))
    assert served.draft.after[0].settings == {"tokens": "last_hidden_state", "mask": "attention_mask", "mode": "mean"}
    agrees_everywhere(served)


def test_own_pooled_output_passed_through(tmp_path: Path) -> None:
    """A model's own pooled output is passed through."""
    served = serve(bert(tmp_path / "model", "Model"), tmp_path / "out")
    assert served.draft.after == ()
    assert [tensor.name for tensor in served.draft.outputs] == ["pooler_output"]
    agrees_everywhere(served)


def test_unnormalised_embedding_refused(tmp_path: Path) -> None:
    """An embedding that lacks the directory's normalisation is refused."""
    with pytest.raises(UsageError, match=r"leaves out .* \(Pooling, Normalize\)") as raised:
        serve(minilm(), tmp_path, task="feature-extraction")
    assert raised.value.remedy.startswith("leave `task` and `outputs` out")


@pytest.mark.slow
def test_model_tensors_can_be_asked(tmp_path: Path) -> None:
    """The model's own tensors can be asked for."""
    served = serve(bert(tmp_path / "model", "ForMaskedLM"), tmp_path / "out", output="tensors")
    assert served.draft.output == "tensors"
    assert [tensor.name for tensor in served.draft.outputs] == ["logits"]
    question = served.draft.questions["mixed"]
    agree(served.draft.ask(question), served.answer(question), 2e-5)


def test_pair_classifier_takes_two_texts(tmp_path: Path) -> None:
    """A classifier of pairs takes two texts."""
    names = dict(enumerate(["entailment", "neutral", "contradiction"]))
    folder = bert(tmp_path / "model", "ForSequenceClassification", id2label=names, num_labels=3)
    served = serve(folder, tmp_path / "out", top_k=1)
    assert [tensor.name for tensor in served.draft.inputs] == ["text", "text_pair"]
    assert [(t.name, t.dtype, t.dims) for t in served.draft.outputs] == [
        ("label", "string", ("batch", 1)),
        ("score", "float32", ("batch", 1)),
    ]
    agrees_everywhere(served)
    import transformers

    library = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    pairs = [
        {"text": first, "text_pair": second} for first, second in zip(SENTENCES[:40], SENTENCES[40:80], strict=True)
    ]
    owed: list[Any] = library(pairs, truncation=True)
    answer = served.answer({"text": column(*SENTENCES[:40]), "text_pair": column(*SENTENCES[40:80])})
    assert [label.decode() for (label,) in answer["label"]] == [entry["label"] for entry in owed]
    close(answer["score"][:, 0], [entry["score"] for entry in owed], atol=2e-6)


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid"])
def test_cross_encoder_scores_as_published(activation: str, tmp_path: Path) -> None:
    """A cross-encoder scores as its authors wrote."""
    from sentence_transformers import CrossEncoder

    settings = {"activation_fn": f"torch.nn.modules.{activation}", "version": "4.0.1"}
    folder = bert(tmp_path / "model", "ForSequenceClassification", num_labels=1, sentence_transformers=settings)
    served = serve(folder, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = CrossEncoder(str(folder), device="cpu")
        owed = own.predict(list(zip(SENTENCES[:30], SENTENCES[30:60], strict=True)))
    answer = served.answer({"text": column(*SENTENCES[:30]), "text_pair": column(*SENTENCES[30:60])})
    close(answer["score"][:, 0], owed, atol=5e-6)
    agrees_everywhere(served)


@pytest.mark.parametrize(
    ("head", "output"),
    [("ForSequenceClassification", "labels"), ("ForTokenClassification", "tags"), ("ForQuestionAnswering", "answer")],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_heads_follow_task_rules(head: str, output: Any, side: str, tmp_path: Path) -> None:
    """Every head is asked by the rules of its task."""
    folder = roberta(tmp_path / "model", head, byte_level(padding_side=side))
    assert text_output(folder, "") == output
    axes = {"sequence": AxisRange(min=24, opt=32, max=64, step=8)}
    served = serve(folder, tmp_path / "out", padding="opt", axes=axes)
    assert served.draft.output == output
    assert served.draft.input == "text"
    assert [part.name for part in served.draft.before] == ["text"]
    agrees_everywhere(served)


def test_task_decides_before_configuration(tmp_path: Path) -> None:
    """A task decides before the configuration."""
    folder = bert(tmp_path / "model", "ForSequenceClassification")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    assert text_output(folder, "") == "embedding"
    served = serve(folder, tmp_path / "out", task="text-classification")
    assert served.draft.output == "labels"
    agrees_everywhere(served)


@pytest.mark.slow
def test_longest_text_from_spec_or_model(tmp_path: Path) -> None:
    """The longest text is what the spec says or what all allow."""
    folder = bert(tmp_path / "model", "ForSequenceClassification")
    assert serve(folder, tmp_path / "a").draft.before[0].settings["max_length"] == 128  # the tokenizer's
    served = serve(folder, tmp_path / "b", max_length=20)
    assert served.draft.before[0].settings["max_length"] == 20
    agrees_everywhere(served)
    axes = {"sequence": AxisRange(min=8, opt=16, max=64, step=8)}
    served = serve(folder, tmp_path / "c", axes=axes)
    settings = served.draft.before[0].settings
    assert (settings["max_length"], settings["least"], settings["step"]) == (64, 8, 8)
    agrees_everywhere(served)
    with pytest.raises(UsageError, match=r"max_length is 65, and the model is compiled for at most 64"):
        serve(folder, tmp_path / "d", axes=axes, max_length=65)
    with pytest.raises(UsageError, match=r"no room for a word below 3"):
        serve(folder, tmp_path / "e", max_length=2)


def test_fixed_length_graph_pads_texts(tmp_path: Path) -> None:
    """A graph of one length gets all texts in that length."""
    served = serve(bert(tmp_path / "model", "ForTokenClassification"), tmp_path / "out", fixed=16)
    (tensors,) = served.step(served.draft.before[0]).answer([{"text": column("a cat", " ".join(SENTENCES))}])
    assert tensors["input_ids"].shape == (2, 16)
    agrees_everywhere(served)


def test_questions_fit_model_batch(tmp_path: Path) -> None:
    """Questions fit the batch of the model."""
    folder = bert(tmp_path / "model", "ForSequenceClassification")
    served = serve(folder, tmp_path / "out", axes={"batch": AxisRange(min=1, opt=1, max=2)})
    assert max(len(question["text"]) for question in served.draft.questions.values()) == 2


def test_empty_text_without_token_skipped(tmp_path: Path) -> None:
    """No empty text is asked where it makes no token."""
    folder = roberta(tmp_path / "model", "ForSequenceClassification", byte_level(marks=False))
    served = serve(folder, tmp_path / "out")
    assert "empty" not in served.draft.questions
    assert all(question["text"].all() for question in served.draft.questions.values())
    agrees_everywhere(served)


def test_tokenizer_without_padding_refused(tmp_path: Path) -> None:
    """A tokenizer without padding is refused."""
    tokenizer = byte_level(pad_token=None)
    assert tokenizer.pad_token_id is None
    folder = roberta(tmp_path / "model", "Model", tokenizer, pad_token_id=1)
    with pytest.raises(SourceError, match="has no padding token") as raised:
        serve(folder, tmp_path / "out")
    assert "tokenizer.pad_token = tokenizer.eos_token" in raised.value.remedy


def test_vocabulary_alone_gives_same_tokens(tmp_path: Path) -> None:
    """A directory with a vocabulary alone has the same tokens."""
    folder = bert(tmp_path / "model", "Model")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_bytes((minilm() / "vocab.txt").read_bytes())
    served = serve(folder, tmp_path / "out")
    (tensors,) = served.step(served.draft.before[0]).answer([{"text": column(*SENTENCES)}])
    expected = word_piece()(list(SENTENCES), padding=True, truncation=True, max_length=128, return_tensors="np")
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.slow
def test_tokenizer_without_fast_form_refused(tmp_path: Path) -> None:
    """A tokenizer with no fast form is refused."""
    import transformers

    tokenizer_class: Any = transformers.CanineTokenizer
    sizes = SIZES | {"num_hash_buckets": 64, "downsampling_rate": 4, "local_transformer_stride": 16}
    folder = save(tmp_path / "canine", "CanineModel", "CanineConfig", tokenizer_class(), **sizes)
    with pytest.raises(SourceError, match=r"CanineTokenizer\) has no fast form") as raised:
        fast_tokenizer(tokenizer_class(), folder)
    assert raised.value.remedy == "save a fast one with the model (tokenizer.json), or leave `pipeline` out"


REFUSED: Mapping[str, tuple[Any, ...]] = {
    "an ONNX file": ("onnx", {}, True, "", {}, "an ONNX file has no tokenizer", "hf:<id or directory>"),
    "a model of timm": ("timm", {}, True, "", {}, "timm's models read images", "leave `pipeline` out"),
    "no tokenizer": ("hf", {}, False, "", {}, "has no tokenizer", "tokenizer.save_pretrained"),
    "labels of an encoder": (
        "hf",
        {"architectures": ["BertModel"]},
        True,
        "",
        {"output": "labels"},
        "output is labels, and the model's configuration makes it embedding",
        "write output: embedding",
    ),
    "tags of a task": (
        "hf",
        {"architectures": ["BertModel"]},
        True,
        "text-classification",
        {"output": "tags"},
        "output is tags, and the model's task makes it labels",
        "write output: labels, or tensors",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_plan_told_from_files(case: str, tmp_path: Path) -> None:
    """What cannot be planned is told by the files alone."""
    scheme, config, tokenizer, task, options, message, remedy = REFUSED[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PlansmithError) as raised:
        TEXTS.refuse(scheme, tmp_path, PipelineOptions.model_validate(options), task=task)
    assert message in raised.value.message
    assert remedy in raised.value.remedy


@pytest.mark.parametrize(
    ("architecture", "output"),
    [
        ("DistilBertForSequenceClassification", "labels"),
        ("XLNetForQuestionAnsweringSimple", "answer"),
        ("GPT2LMHeadModel", "text"),
        ("T5ForConditionalGeneration", "text"),
        ("LlamaForCausalLM", "text"),
        ("MPNetModel", "embedding"),
        ("BertForMaskedLM", "fill-mask"),
        ("BertForPreTraining", "tensors"),
        ("BertForNextSentencePrediction", "labels"),
    ],
)
def test_class_name_tells_text_task(architecture: str, output: Any, tmp_path: Path) -> None:
    """The name of a class tells what it makes of texts."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert text_output(tmp_path, "") == output
    assert takes_pairs(tmp_path, "") == (architecture == "BertForNextSentencePrediction")


def test_generated_text_not_planned(tmp_path: Path) -> None:
    """Generated text is not planned here."""
    folder = bert(tmp_path / "model", "LMHeadModel", is_decoder=True)
    with pytest.raises(UsageError, match="output is text") as raised:
        serve(folder, tmp_path / "out")
    assert "output: tensors" in raised.value.remedy


def test_omitted_output_asked_for(tmp_path: Path) -> None:
    """An output that the spec leaves out is asked for."""
    folder = bert(tmp_path / "model", "ForSequenceClassification")
    with pytest.raises(
        UsageError, match=r"needs the model's logits, and its outputs are hidden_states_1 \[batch"
    ) as raised:
        serve(folder, tmp_path / "out", outputs=("hidden_states_1",))
    assert raised.value.remedy == "leave logits among the spec's `outputs`, or write output: tensors under `pipeline`"
