"""The plain script that a compile is held against: one process, one export, the same forward passes.

Loads the model, exports it once with the TorchScript exporter, and runs every shape through PyTorch and
through ONNX Runtime once, comparing the answers. No cache, no fallback, no records, no stored reference.

    python benchmarks/bare_compile.py FOLDER|timm:NAME|timm:FOLDER OUT BxS [BxS …]      (or B for images)
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

Inputs = Callable[[tuple[int, ...]], tuple[torch.Tensor, ...]]


def text_model(folder: str) -> tuple[torch.nn.Module, Inputs, list[str], dict[str, dict[int, str]]]:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    loaded: Any = getattr(transformers, config.architectures[0]).from_pretrained(folder)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size > 1 else [])]

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = loaded

        def forward(self, *tensors: torch.Tensor) -> Any:
            return self.model(**dict(zip(names, tensors, strict=True))).to_tuple()

    def inputs(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        ids = torch.randint(1000, 20000, shape)
        return (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(names)]

    axes = {n: {0: "batch", 1: "sequence"} for n in [*names, "last_hidden_state"]}
    return Wrapped().eval(), inputs, names, axes | {"pooler_output": {0: "batch"}}


def image_model(name: str) -> tuple[torch.nn.Module, Inputs, list[str], dict[str, dict[int, str]]]:
    import timm

    is_folder = Path(name).is_dir()
    model = timm.create_model(f"local-dir:{name}" if is_folder else name, pretrained=is_folder).eval()
    size = timm.data.resolve_model_data_config(model)["input_size"]
    axes = {"pixel_values": {0: "batch"}, "logits": {0: "batch"}}
    return model, lambda shape: (torch.rand(*shape, *size),), ["pixel_values"], axes


def main(source: str, out: str, shapes: list[tuple[int, ...]]) -> None:
    warnings.simplefilter("ignore")
    load = image_model if source.startswith("timm:") else text_model
    model, inputs, names, axes = load(source.removeprefix("timm:"))
    outputs = [n for n in axes if n not in names]
    feeds = [inputs(shape) for shape in shapes]
    with torch.no_grad():
        answers = [model(*feed) for feed in feeds]
    path = Path(out) / "model.onnx"
    torch.onnx.export(
        model, feeds[0], str(path), input_names=names, output_names=outputs, dynamic_axes=axes, dynamo=False
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for feed, answer in zip(feeds, answers, strict=True):
        results = session.run(outputs, {n: t.numpy() for n, t in zip(names, feed, strict=True)})
        expected = answer if isinstance(answer, tuple) else (answer,)
        worst = max(float(np.abs(f - e.numpy()).max()) for f, e in zip(results, expected, strict=True))
        print("x".join(map(str, feed[0].shape)), f"largest error {worst:.1e}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [tuple(int(n) for n in s.split("x")) for s in sys.argv[3:]])
