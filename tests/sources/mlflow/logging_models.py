"""Run by the Python beside a real MLflow: logs and registers small models, as their authors do.

Two versions of a classifier of texts, `clf`; `net`, an ONNX graph with weights of its own file; `pickled`, of PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlflow
import numpy as np
import onnx
import torch
from mlflow import MlflowClient
from onnx import numpy_helper, parser
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "on", "the", "mat", "good", "bad")
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=36,
    max_position_embeddings=40,
    initializer_range=0.5,
)


def log_all(folder: Path) -> None:
    """Log everything; the folder takes a tokenizer."""
    vocabulary = folder / "tokenizer"
    vocabulary.mkdir()
    (vocabulary / "vocab.txt").write_text("\n".join(WORDS))
    (vocabulary / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    tokenizer = AutoTokenizer.from_pretrained(vocabulary)
    for seed in (1, 2):
        torch.manual_seed(seed)
        parts = {"model": BertForSequenceClassification(CONFIG), "tokenizer": tokenizer}
        mlflow.transformers.log_model(parts, task="text-classification", name="clf", registered_model_name="clf")
    MlflowClient().set_registered_model_alias("clf", "champion", "1")
    graph = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[batch, 64] x) => (float[batch, 64] y) { y = MatMul (x, w) }'
    )
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    graph.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    mlflow.onnx.log_model(onnx.load_from_string(graph.SerializeToString()), name="net", registered_model_name="net")
    layer = torch.nn.Linear(4, 3)
    mlflow.pytorch.log_model(layer, name="pt", registered_model_name="pickled", serialization_format="pickle")


if __name__ == "__main__":
    log_all(Path(sys.argv[1]))
