"""An endpoint that ships, from the spec of its model up to the edge of AWS, and served on this machine."""

from __future__ import annotations

import shutil

import pytest

from ..support.cli.command import CommandLine
from ..support.source import ROOT

pytestmark = pytest.mark.services

COPIES = 5


def test_bert_copies_as_multi_model_endpoint(run_alone: CommandLine) -> None:
    """Copies of a BERT are served as a multi-model endpoint."""
    for name in ("models", "endpoints"):
        shutil.copytree(ROOT / "configs" / name, run_alone.folder / "configs" / name)
    run_alone.document("compile", "configs/models/bert-entities-random.yaml")
    endpoint = ("sagemaker", "deploy", "configs/endpoints/bert-copies.yaml")
    served = run_alone.document(*endpoint, "--local")["local"]
    assert [(row["variant"], row["release"], row["compared"]) for row in served] == [
        ("main", "bert-entities-random@1", True)
    ] * COPIES
    assert len({row["archive"] for row in served}) == COPIES
    assert "the request 'empty' of its release" not in {row["request"] for row in served}, "its answer proves nothing"
    planned = run_alone.document(*endpoint, "--dry-run", AWS_EC2_METADATA_DISABLED="true")
    operations = [request["operation"] for request in planned["requests"]]
    created = ("create_model", "create_endpoint_config", "create_endpoint", "add_tags")
    assert operations == [*["upload_file"] * COPIES, *created]
    assert planned["target_models"] == {"main": [row["archive"] for row in served]}
