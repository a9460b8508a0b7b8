"""Directories of sentence-transformers: pooling, dense layers and normalisation, as the package computes them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.errors import SourceError
from plansmith.sources.huggingface import models
from plansmith.sources.huggingface.heads import MODES, pooling_of
from plansmith.sources.huggingface.sentence_transformers import read_modules

from ...support.models.architectures import TEXT, load, save, tokenizer

SENTENCES = ["a cat sat", "dogs bark at night and birds sing in the morning", "rain"]


def published(folder: Path, *behind: Any, padding_side: str = "right") -> Path:
    """A small encoder with modules behind it, as the package saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    word_tokenizer = tokenizer(pad_token="[PAD]", unk_token="[UNK]", bos_token="[CLS]", eos_token="[SEP]")
    word_tokenizer.padding_side = padding_side
    encoder = save(folder / "encoder", "BertModel", "BertConfig", word_tokenizer, **TEXT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SentenceTransformer(modules=[Transformer(str(encoder)), *behind]).save(str(folder / "model"))
    return folder / "model"


def expected(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the package feeds its model with, and what it answers."""
    import torch
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(folder), device="cpu").eval()
    with torch.inference_mode():
        feed = {k: v for k, v in model.preprocess(SENTENCES).items() if isinstance(v, torch.Tensor)}
        answer = model(dict(feed))
    return {k: v.numpy() for k, v in feed.items()}, {
        k: v.numpy() for k, v in answer.items() if isinstance(v, torch.Tensor)
    }


def compare(folder: Path, name: str = "sentence_embedding") -> None:
    feed, answer = expected(folder)
    live = load(folder)
    assert live.output_names == ("last_hidden_state", name)
    nothing = np.zeros_like(feed["input_ids"])  # the package leaves segments to the model, which takes the first then
    result: dict[str, Any] = live.ask({t.name: feed.get(t.name, nothing) for t in live.inputs.tensors})
    assert result[name].shape == answer[name].shape
    np.testing.assert_allclose(result[name], answer[name], atol=2e-6)


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("mode", MODES)
def test_pooling_matches_package(mode: str, padding_side: str, tmp_path: Path) -> None:
    """Every way of pooling is the package's own."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    compare(published(tmp_path, Pooling(32, mode), padding_side=padding_side))


def test_pooling_dense_normalisation_chain(tmp_path: Path) -> None:
    """Several ways, dense layers and normalisation follow each other."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize, Pooling

    compare(
        published(
            tmp_path,
            Pooling(32, ("cls", "mean")),
            Dense(64, 24, activation_function=torch.nn.GELU()),
            Dense(24, 24, bias=False, activation_function=None, use_residual=True),
            LayerNorm(24),
            Dropout(0.5),
            Normalize(),
        )
    )


@pytest.mark.slow
def test_real_model_embeddings_match_package(minilm_folder: Path) -> None:
    """The real model gives the package's own embeddings."""
    compare(minilm_folder)
    live = load(minilm_folder)
    vectors: dict[str, Any] = live.ask(live.inputs.make({"batch": 3, "sequence": 12}))
    np.testing.assert_allclose(np.linalg.norm(vectors["sentence_embedding"], axis=1), 1, atol=1e-6)


def test_token_vectors_may_be_output(tmp_path: Path) -> None:
    """Vectors of tokens may be what is made."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    dense = Dense(32, 8, activation_function=None, module_input_name="token_embeddings")
    compare(published(tmp_path, dense, Normalize("token_embeddings")), "token_embeddings")


def test_other_task_takes_encoder_alone(minilm_folder: Path) -> None:
    """Another task takes the encoder alone."""
    assert load(minilm_folder, task="feature-extraction").output_names == ("last_hidden_state", "pooler_output")
    assert load(minilm_folder, task="sentence-similarity").output_names == ("last_hidden_state", "sentence_embedding")


def test_own_pooling_compared_unchanged(minilm_folder: Path) -> None:
    """What the model pools itself is compared as it is."""
    assert pooling_of(minilm_folder, "", ()) == "none"
    assert pooling_of(minilm_folder, "", ("last_hidden_state",)) == "mean"
    assert pooling_of(minilm_folder, "feature-extraction", ()) == "mean"


def test_random_weights_fill_modules(tmp_path: Path) -> None:
    """Random weights fill the modules too."""
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    folder = published(tmp_path, Pooling(32), Dense(32, 8))
    (folder / "2_Dense" / "model.safetensors").unlink()
    (tmp_path / "random").mkdir()
    models.make_random(folder, tmp_path / "random", seed=0, trust_remote_code=False, task="")
    live = load(tmp_path / "random")
    assert live.ask(live.inputs.make({"batch": 2, "sequence": 9}))["sentence_embedding"].shape == (2, 8)


def rewrite(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_unknown_module_suggests_encoder_alone(tmp_path: Path) -> None:
    """What is not known is refused, with the encoder alone as the way out."""
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    folder = published(tmp_path, Pooling(32), Dense(32, 8))
    kinds = json.loads((folder / "modules.json").read_text())

    def refused(says: str) -> None:
        with pytest.raises(SourceError, match=says) as caught:
            read_modules(folder, "", allow_pickle=False)
        assert "--task feature-extraction" in caught.value.remedy

    rewrite(folder / "2_Dense" / "config.json", activation_function="os.system")
    refused(r"activation is os\.system, which torch\.nn does not have")
    rewrite(folder / "1_Pooling" / "config.json", pooling_mode="median")
    refused("pools by median")
    rewrite(folder / "1_Pooling" / "config.json", pooling_mode="mean", include_prompt=False)
    rewrite(folder / "config_sentence_transformers.json", prompts={"query": "search: "})
    refused("leaves the tokens of its prompts out")
    (folder / "modules.json").write_text(json.dumps([kinds[0], {**kinds[1], "type": "their.LSTM"}]))
    refused("a module of the kind their.LSTM")
    assert read_modules(folder, "feature-extraction", allow_pickle=False) is None


def test_module_without_weights_refused(tmp_path: Path) -> None:
    """A module without weights or outside of the directory is refused."""
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    folder = published(tmp_path, Pooling(32), Dense(32, 8))
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="2_Dense has no weights"):
        read_modules(folder, "", allow_pickle=False)
    kinds = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([kinds[0], {**kinds[1], "path": "../1_Pooling"}]))
    with pytest.raises(SourceError, match=r"names a folder '\.\./1_Pooling'"):
        read_modules(folder, "", allow_pickle=False)
