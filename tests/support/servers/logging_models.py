"""Run by the Python beside a real MLflow: logs and registers small models, as their authors do.

Two versions of a classifier of texts, `clf`; `net`, an ONNX graph with weights of its own file; `pickled`, of PyTorch,
and `exported`, the same as torch.export saw it.
Names after the folder, which takes a tokenizer, leave the others out; each more `net` is another version of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlflow
from mlflow import MlflowClient

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "on", "the", "mat", "good", "bad")


def log_classifiers(folder: Path) -> None:
    """Two versions of a model of transformers, of which the first is the champion."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=36,
        max_position_embeddings=40,
        initializer_range=0.5,
    )
    vocabulary = folder / "tokenizer"
    vocabulary.mkdir()
    (vocabulary / "vocab.txt").write_text("\n".join(WORDS))
    (vocabulary / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    tokenizer = AutoTokenizer.from_pretrained(vocabulary)
    for seed in (1, 2):
        torch.manual_seed(seed)
        parts = {"model": BertForSequenceClassification(config), "tokenizer": tokenizer}
        mlflow.transformers.log_model(parts, task="text-classification", name="clf", registered_model_name="clf")
    MlflowClient().set_registered_model_alias("clf", "champion", "1")


def log_net(seed: int) -> None:
    """A product in ONNX."""
    import numpy as np
    import onnx
    from onnx import numpy_helper, parser

    graph = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[batch, 64] x) => (float[batch, 64] y) { y = MatMul (x, w) }'
    )
    weight = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
    graph.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    whole = onnx.load_from_string(graph.SerializeToString())
    # With requirements of its own: MLflow would run the model in another process to find them out.
    mlflow.onnx.log_model(whole, name="net", registered_model_name="net", pip_requirements=["onnx"])


def log_module(name: str) -> None:
    """A layer of PyTorch: pickled, or exported."""
    import numpy as np
    import torch

    form = {"pickled": "pickle", "exported": "pt2"}[name]
    example = np.zeros((2, 4), np.float32)
    mlflow.pytorch.log_model(
        torch.nn.Linear(4, 3),
        name="module",
        registered_model_name=name,
        serialization_format=form,
        input_example=example if form == "pt2" else None,
    )


def log_all(folder: Path, names: list[str]) -> None:
    """Log what is named."""
    for number, name in enumerate(names):
        if name == "clf":
            log_classifiers(folder)
        elif name == "net":
            log_net(number)
        else:
            log_module(name)


if __name__ == "__main__":
    log_all(Path(sys.argv[1]), sys.argv[2:] or ["clf", "net", "pickled", "exported"])
