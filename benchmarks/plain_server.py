"""The server that one would write without Triton: FastAPI and PyTorch, one request after the other.

    python -m uvicorn --factory benchmarks.plain_server:make_app --port PORT

It takes and gives the JSON of KServe's protocol, so that a client sends the same bytes to it as to Triton. Requests
wait for each other in the event loop, and PyTorch has all cores for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from benchmarks.compile_cost import MINILM
from fastapi import FastAPI, Response
from numpy.typing import NDArray
from pydantic import BaseModel

OUTPUT = "sentence_embedding"


class Tensor(BaseModel):
    """An input, its elements in one list."""

    name: str
    shape: list[int]
    data: list[int]


class Question(BaseModel):
    """A request; what else it holds does not matter here."""

    inputs: list[Tensor]


class Embedder:
    """all-MiniLM-L6-v2 in PyTorch as its authors use it: the mean over the tokens, of length 1."""

    def __init__(self) -> None:
        self._model = transformers.AutoModel.from_pretrained(MINILM).eval()

    def embed(self, feed: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Sentences by their tokens [batch, length] -> vectors [batch, 384]."""
        tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
        with torch.inference_mode():
            tokens = self._model(**tensors).last_hidden_state
            mask = tensors["attention_mask"].unsqueeze(-1)
            means = (tokens * mask).sum(1) / mask.sum(1)
            vectors: NDArray[np.float32] = torch.nn.functional.normalize(means, dim=1).numpy()
        return vectors


def make_app() -> FastAPI:
    """The application, with the model loaded."""
    app, embedder = FastAPI(), Embedder()

    @app.get("/v2/health/ready")
    async def is_ready() -> dict[str, Any]:
        return {}

    @app.post("/v2/models/{model}/infer")
    async def infer(model: str, question: Question) -> Response:
        feed = {tensor.name: np.array(tensor.data).reshape(tensor.shape) for tensor in question.inputs}
        vectors = embedder.embed(feed)
        output = {"name": OUTPUT, "datatype": "FP32", "shape": vectors.shape, "data": vectors.ravel().tolist()}
        return Response(json.dumps({"model_name": model, "outputs": [output]}), media_type="application/json")

    return app
