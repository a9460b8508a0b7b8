"""Whole compiles of a BERT that takes seconds, run in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TINY_BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
NAME = "tiny-bert"


def write_tiny_bert(folder: Path) -> Path:
    """The configuration alone: a compile draws the weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY_BERT))
    return folder


def start_compile(model: Path, artifacts: Path, *options: object) -> subprocess.Popen[str]:
    """A running compile; it says on its standard error which steps it finished, and prints JSON at its end."""
    command = [sys.executable, "-m", "plansmith", "compile", f"hf:{model}", "--name", NAME]
    command += ["--random-weights", "--no-check-served", "--json", "--artifacts", str(artifacts), *map(str, options)]
    return subprocess.Popen(command, cwd=model, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a compile that must succeed: the document that it prints."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    document: dict[str, Any] = json.loads(output)
    return document


def cached_steps(document: dict[str, Any]) -> dict[str, bool]:
    """Which steps of a compile were found in the cache."""
    return {step["name"]: step["cached"] for step in document["steps"]}
