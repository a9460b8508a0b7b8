"""Classifiers of texts for NVIDIA Dynamo's frontend: one text in, a score for each class out, labels by file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ...support.cli.command import CommandLine, check_refusal
from ...support.cli.commands import serve
from ...support.pipelines.classifiers import LABELS, classifier, save_classifiers
from ...support.pipelines.columns import column
from ...support.pipelines.texts import SENTENCES
from ...support.triton.installed import installation, site

__all__ = ["installation", "site"]

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.usefixtures("installation", "site")]

SPEC = "source: hf:./topics\nname: topics\npipeline: {frontend: dynamo}\n"


def test_classifier_for_dynamo(tmp_path: Path) -> None:
    """Triton names the likeliest class as transformers does, and `check --dynamo` finds nothing."""
    from tritonclient import grpc

    save_classifiers(tmp_path)
    (tmp_path / "topics.yaml").write_text(SPEC)
    command = CommandLine(tmp_path)
    assert command.document("compile", "topics.yaml")["verdict"] == "passed"
    repository = tmp_path / "artifacts" / "repository"
    assert command("check", repository, "--dynamo", "--fail-on", "warning").status == 0
    expected = classifier(tmp_path / "topics", top_k=1).scores(SENTENCES[:4])
    texts = column(*(text.encode() for text in SENTENCES[:4]))
    with serve(str(repository), "topics", tmp_path / "served") as (_, url), grpc.InferenceServerClient(url) as client:
        text = grpc.InferInput("text", list(texts.shape), "BYTES")
        text.set_data_from_numpy(texts)
        scores = client.infer("topics", [text]).as_numpy("score")
        selection = [grpc.InferRequestedOutput("score", class_count=1)]
        best = client.infer("topics", [text], outputs=selection).as_numpy("score")
    for row, by_label in zip(scores, expected, strict=True):
        np.testing.assert_allclose(row, [by_label[label] for label in LABELS["topics"]], atol=1e-4)
    labels = [value.decode().split(":")[2] for value in best.reshape(-1)]
    assert labels == [max(by_label, key=lambda label: by_label[label]) for by_label in expected]


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        ("{frontend: dynamo, output: tensors}", ("asks for labels or embeddings of texts",)),
        ("{frontend: dynamo, script: route.py}", ("a frontend asks one model, and there is `script`",)),
        ("{models: {other: {source: 'hf:./mood', pipeline: {frontend: dynamo}}}}", ("other stands beside another",)),
        ("{frontend: dynamos}", ("frontend",)),
    ],
)
def test_frontend_questions_never_asked(tmp_path: Path, pipeline: str, says: tuple[str, ...]) -> None:
    """A frontend asks one model for labels or embeddings: anything else is refused before any work."""
    save_classifiers(tmp_path)
    (tmp_path / "topics.yaml").write_text(f"source: hf:./topics\npipeline: {pipeline}\n")
    check_refusal(CommandLine(tmp_path)("compile", "topics.yaml", "--json"), 2, says)


def test_check_names_dynamo_misfits(tmp_path: Path) -> None:
    """A classifier with labels of its own answers with two outputs that have one row, and has no file of labels."""
    save_classifiers(tmp_path)
    (tmp_path / "topics.yaml").write_text("source: hf:./topics\nname: topics\n")
    command = CommandLine(tmp_path)
    command.document("compile", "topics.yaml", "--no-check-served")
    answer = command("check", tmp_path / "artifacts" / "repository", "--dynamo", "--json")
    assert answer.status == 7
    assert {finding["rule"] for finding in answer.document["findings"]} >= {"dynamo.input"}
