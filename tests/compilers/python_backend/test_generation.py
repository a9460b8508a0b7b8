"""Texts that a model generates, many at once: each is what transformers' `generate` gives to its question alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from plansmith.compilers.python_backend.generate import CANCELLED, Answer, Generator, Prompt
from plansmith.compilers.python_backend.generation_parameters import (
    GenerationLimits,
    GenerationParameters,
    Unanswerable,
    read_generation_parameters,
)
from plansmith.compilers.python_backend.generator_loading import GeneratingModel, load_generating, wants_generation
from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.in_process import plan_generation

from ...support.generators import write_gpt2, write_t5
from ...support.models.python_backend import write_odd
from ...support.real_sentences import real_sentences

KINDS = ["t5", "gpt2"]
TEXTS = [*real_sentences()[:20], " ", "I 💚 quiet mornings. 🌄🐦", "ÀÉÎ — 漢字 — Ж", " ".join(real_sentences()[:30])]
MIDDLING = "These numbers are exact, and others are not."
pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
ASKED: dict[str, Any] = {"trust_remote_code": False, "allow_pickle": False, "task": ""}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("sources")
    return {"t5": write_t5(place / "t5"), "gpt2": write_gpt2(place / "gpt2")}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, GeneratingModel]:
    return {name: load_generating(folder, PipelineOptions(), **ASKED) for name, folder in folders.items()}


def generator(model: GeneratingModel, largest: int = 8) -> Generator:
    return Generator(model.module, model.tokenizer, model.limits, largest)


def answered(made: Generator, prompts: list[Prompt]) -> list[Answer]:
    by_place = dict(made.answers(prompts))
    return [by_place[place] for place in range(len(prompts))]


def texts_of(made: Generator, texts: list[str], wishes: GenerationParameters | None = None) -> list[str]:
    answers = answered(made, [Prompt(text, wishes or GenerationParameters()) for text in texts])
    assert not [answer for answer in answers if answer.refusal]
    return [answer.text for answer in answers]


def theirs(folder: Path, text: str, room: int, **options: Any) -> str:
    """What a person gets who asks transformers."""
    kind = AutoModelForSeq2SeqLM if folder.name == "t5" else AutoModelForCausalLM
    tokenizer, model = AutoTokenizer.from_pretrained(folder), kind.from_pretrained(folder).eval()
    tokens = tokenizer(text, truncation=True, max_length=room, return_tensors="pt")
    (sequence,) = model.generate(**tokens, **options)
    new = sequence if folder.name == "t5" else sequence[tokens["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_batched_texts_match_generate(kind: str, models: dict[str, GeneratingModel], folders: dict[str, Path]) -> None:
    """Texts of one batch get what generate() gives to each alone."""
    expected = [theirs(folders[kind], text, {"t5": 48, "gpt2": 44}[kind]) for text in TEXTS]
    assert len(set(expected)) > len(TEXTS) * 0.8  # a model that always says the same would show nothing
    assert texts_of(generator(models[kind]), TEXTS) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "length_penalty": 0.5},
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 4},
    ],
    ids="-".join,
)
def test_options_match_transformers(
    kind: str, options: dict[str, Any], models: dict[str, GeneratingModel], folders: dict[str, Path]
) -> None:
    """Options do what they do in Transformers."""
    expected = [
        theirs(folders[kind], text, {"t5": 48, "gpt2": 52}[kind], max_new_tokens=12, **options) for text in TEXTS[:6]
    ]
    assert texts_of(generator(models[kind]), TEXTS[:6], GenerationParameters(options, new_tokens=12)) == expected
    assert texts_of(generator(models[kind]), TEXTS[:6], GenerationParameters(new_tokens=12)) != expected


@pytest.mark.parametrize("kind", KINDS)
def test_seeded_draws_are_repeatable(kind: str, models: dict[str, GeneratingModel]) -> None:
    """Draws with a seed are the same ones alone and among others."""
    wishes = GenerationParameters({"do_sample": True, "temperature": 30.5}, new_tokens=16, seed=7)
    alone = [texts_of(generator(models[kind]), [text], wishes)[0] for text in TEXTS[:4]]
    assert texts_of(generator(models[kind]), TEXTS[:4], wishes) == alone
    parameters = GenerationParameters(wishes.options, new_tokens=16, seed=8)
    assert texts_of(generator(models[kind]), TEXTS[:4], parameters) != alone


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_pieces_join_to_whole(kind: str, models: dict[str, GeneratingModel]) -> None:
    """Pieces that stream join to the whole beside texts that do not stream."""
    pieces: list[list[str]] = [[] for _ in TEXTS]
    wishes = GenerationParameters(new_tokens=20, stream=True)
    prompts = [
        Prompt(text, wishes, pieces[place].append) if place % 2 else Prompt(text, GenerationParameters(new_tokens=20))
        for place, text in enumerate(TEXTS)
    ]
    for place, answer in enumerate(answered(generator(models[kind]), prompts)):
        assert "".join(pieces[place]) + answer.remainder == answer.text
        assert bool(pieces[place]) == bool(place % 2)
        assert "\ufffd" not in "".join(pieces[place])[-1:]
    assert max(map(len, pieces)) > 10
    assert texts_of(generator(models[kind]), TEXTS, wishes) == texts_of(generator(models[kind]), TEXTS, wishes)


def test_empty_text_answered_where_possible(models: dict[str, GeneratingModel], folders: dict[str, Path]) -> None:
    """An empty text is answered where the model can begin with nothing."""
    gpt2: Any = AutoModelForCausalLM.from_pretrained(folders["gpt2"])
    (tokens,) = gpt2.generate(max_new_tokens=20)
    expected = models["gpt2"].tokenizer.decode(tokens[1:], skip_special_tokens=True)
    assert texts_of(generator(models["gpt2"]), [""]) == [expected]
    assert texts_of(generator(models["t5"]), [""]) == [theirs(folders["t5"], "", 48)]


def test_oversized_text_refused_alone(models: dict[str, GeneratingModel]) -> None:
    """A text that leaves no room is refused alone."""
    text_generator = generator(models["gpt2"])
    good, bad = answered(text_generator, [Prompt("A text."), Prompt("A text.", GenerationParameters(new_tokens=64))])
    assert good.text
    assert bad.refusal == "64 new tokens leave no room for the text: the model has 64 positions for both"


def test_gone_client_ends_alone(models: dict[str, GeneratingModel]) -> None:
    """The text of a client that is gone ends alone and before the others."""
    looks = iter([False] * 4)
    checks: list[int] = []

    def is_cancelled() -> bool:
        checks.append(1)
        return next(looks, True)

    cancelled_prompt = Prompt(TEXTS[0], GenerationParameters(new_tokens=60), is_cancelled=is_cancelled)
    text_generator = generator(models["t5"])
    cancelled, answer = answered(
        text_generator, [cancelled_prompt, Prompt(TEXTS[1], GenerationParameters(new_tokens=60))]
    )
    assert (cancelled.refusal, cancelled.is_cancelled) == (CANCELLED, True)
    assert answer.text == texts_of(text_generator, [TEXTS[1]], GenerationParameters(new_tokens=60))[0]
    assert len(checks) == 5  # not asked again once gone

    steps: list[int] = []
    hook = models["t5"].module.decoder.register_forward_hook(lambda *_: steps.append(1))
    looks = iter([False] * 4)
    (alone,) = answered(text_generator, [cancelled_prompt])
    hook.remove()
    assert alone.is_cancelled
    assert len(steps) == 4


@pytest.fixture
def picky(models: dict[str, GeneratingModel]) -> Iterator[GeneratingModel]:
    """Fails at the eighth token behind one text."""
    model = models["gpt2"]
    bad = model.tokenizer(MIDDLING)["input_ids"]

    def look(_: Any, arguments: Any, options: dict[str, Any]) -> None:
        read = arguments[0].shape[1] + options["past_key_values"].get_seq_length()
        if read == len(bad) + 8:
            calls.append(1)
            raise RuntimeError("the eighth token")

    calls: list[int] = []
    hook = model.module.transformer.register_forward_pre_hook(look, with_kwargs=True)
    yield model
    hook.remove()
    assert calls


def test_batch_failure_told_to_its_text(picky: GeneratingModel) -> None:
    """What fails in the middle of a batch is told to its text alone."""
    wishes = GenerationParameters(new_tokens=15, stream=True)
    pieces: list[str] = []
    more: list[str] = []
    prompts = [Prompt("A", wishes, more.append), Prompt(MIDDLING, wishes, pieces.append)]
    good, bad = answered(generator(picky), prompts)
    assert not good.refusal
    assert "".join(more) + good.remainder == good.text
    assert bad.refusal == "PyTorch: RuntimeError: the eighth token"
    assert 0 < len(pieces) <= 8  # none of them twice, though the row was begun anew


LIMITS = GenerationLimits(decodes_only=False, positions=None, prompt_tokens=48, most_new_tokens=100)
WRONG = {
    "an unknown name": ({"colour": 1}, "there is no parameter 'colour'; there are max_new_tokens, num_beams"),
    "too many tokens": ({"max_new_tokens": 101}, "max_new_tokens is a whole number from 1 to 100, and not 101"),
    "no tokens": ({"max_new_tokens": 0}, "max_new_tokens is a whole number from 1 to 100, and not 0"),
    "half a beam": ({"num_beams": 1.5}, "num_beams is a whole number from 1 to 16"),
    "a truth for a number": ({"num_beams": True}, "num_beams is a whole number"),
    "a word for a number": ({"top_p": "much", "do_sample": True}, "top_p is a number above 0 to 1, and not 'much'"),
    "no number": ({"temperature": float("nan"), "do_sample": True}, "temperature is a number above 0 to 100"),
    "a cold draw": ({"temperature": 0, "do_sample": True}, "temperature is a number above 0"),
    "a number for a truth": ({"do_sample": 1}, "do_sample is true or false, and not 1"),
    "a temperature and no draw": ({"temperature": 0.7}, "temperature does nothing without do_sample: true"),
    "a stream of beams": ({"stream": True, "num_beams": 2}, "nothing streams with num_beams 2"),
    "a seed below zero": ({"seed": -1}, "seed is a whole number from 0"),
}


@pytest.mark.parametrize(("parameters", "said"), WRONG.values(), ids=WRONG)
def test_wrong_parameter_refused(parameters: dict[str, Any], said: str) -> None:
    """A parameter that is wrong is refused with what would be right."""
    with pytest.raises(Unanswerable) as refused:
        read_generation_parameters(parameters, LIMITS, {})
    assert said in str(refused.value)


def test_parameters_taken_as_sent() -> None:
    """Parameters are taken as clients can send them."""
    wishes = read_generation_parameters(
        {"do_sample": "TRUE", "top_p": "0.5", "top_k": 3.0, "seed": 4, "stream": False}, LIMITS, {}
    )
    assert wishes == GenerationParameters({"do_sample": True, "top_k": 3, "top_p": 0.5}, None, 4, stream=False)
    with pytest.raises(Unanswerable, match="nothing streams with num_beams 4"):
        read_generation_parameters({"stream": True}, LIMITS, {"num_beams": 4})


@pytest.mark.slow
@pytest.mark.parametrize("length", ["max_length", "max_new_tokens"])
def test_model_configuration_bounds_answers(length: str, tmp_path: Path, folders: dict[str, Path]) -> None:
    """The model's own configuration says how long answers are."""
    for kind, written in (("t5", AutoModelForSeq2SeqLM), ("gpt2", AutoModelForCausalLM)):
        model = written.from_pretrained(folders[kind])
        setattr(model.generation_config, length, 34)
        model.save_pretrained(tmp_path / kind)
        AutoTokenizer.from_pretrained(folders[kind]).save_pretrained(tmp_path / kind)
        text_generator = generator(load_generating(tmp_path / kind, PipelineOptions(), **ASKED))
        texts = [
            text for text in TEXTS[:8] if len(AutoTokenizer.from_pretrained(folders[kind])(text)["input_ids"]) < 30
        ]
        assert len(texts) > 2
        expected = [theirs(tmp_path / kind, text, 30) for text in texts]
        assert texts_of(text_generator, texts) == expected


def test_spec_bounds_texts_and_answers(folders: dict[str, Path]) -> None:
    """The spec bounds texts and answers."""
    limits = load_generating(folders["gpt2"], PipelineOptions(max_length=9, max_new_tokens=7), **ASKED).limits
    assert (limits.prompt_room(None), limits.most_new_tokens, limits.answer_room(None, 9)) == (9, 7, 7)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [1, 8])
def test_real_questions_match_source(
    kind: str, largest: int, folders: dict[str, Path], models: dict[str, GeneratingModel]
) -> None:
    """Questions are ones that people send, and their answers are those of the source."""
    draft = plan_generation(folders[kind], PipelineOptions(), **ASKED, largest_batch=largest)
    assert (draft.before, draft.after, draft.inputs) == ((), (), draft.outputs)
    texts = [text.decode() for feed in draft.questions.values() for text in feed["text"][:, 0].tolist()]
    assert all(len(feed["text"]) <= largest for feed in draft.questions.values())
    assert "" in texts
    assert any("💚" in text for text in texts)
    assert max(len(models[kind].tokenizer(text)["input_ids"]) for text in texts) > models[kind].limits.prompt_tokens
    feed = {"text": np.concatenate([feed["text"] for feed in draft.questions.values()])}
    expected = [text.decode() for text in draft.ask(feed)["text"][:, 0].tolist()]
    assert texts_of(generator(models[kind]), texts) == expected


def test_text_of_other_model_refused(tmp_path: Path, minilm_folder: Path) -> None:
    """A spec that wants text of a model that generates none is refused."""
    options: dict[str, Any] = {"trust_remote_code": False, "task": ""}
    assert not wants_generation(minilm_folder, "hf", PipelineOptions(), **options)
    with pytest.raises(UsageError, match="generates no text"):
        wants_generation(minilm_folder, "hf", PipelineOptions(output="text"), **options)
    odd = write_odd(tmp_path / "odd")
    assert not wants_generation(odd, "hf", PipelineOptions(), trust_remote_code=True, task="")


def test_generating_model_served_as_text(folders: dict[str, Path]) -> None:
    """A model that generates is served so unless the spec says otherwise."""
    options: dict[str, Any] = {"trust_remote_code": False, "task": ""}
    assert wants_generation(folders["t5"], "hf", PipelineOptions(), **options)
    assert not wants_generation(folders["t5"], "hf", PipelineOptions(output="embedding"), **options)
    assert not wants_generation(folders["t5"], "hf", None, **options)


def test_no_text_without_tokenizer(folders: dict[str, Path], tmp_path: Path) -> None:
    """Without a tokenizer there is no text."""
    AutoModelForCausalLM.from_pretrained(folders["gpt2"]).save_pretrained(tmp_path / "bare")
    with pytest.raises(SourceError, match="has no tokenizer"):
        load_generating(tmp_path / "bare", PipelineOptions(), **ASKED)


def test_run_leaves_model_clean(models: dict[str, GeneratingModel]) -> None:
    """Nothing of a run is left in the model."""
    text_generator = generator(models["t5"])
    first = texts_of(text_generator, TEXTS[:3])
    before = models["t5"].module.generation_config.to_dict()
    texts_of(text_generator, TEXTS[:3], GenerationParameters({"num_beams": 2}, new_tokens=5))
    assert models["t5"].module.generation_config.to_dict() == before
    assert texts_of(text_generator, TEXTS[:3]) == first
    assert not torch.is_grad_enabled() or all(parameter.grad is None for parameter in models["t5"].module.parameters())
