"""A model that lies in a bucket alone, through the whole compile by the real command."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...support.cli.commands import compile_model
from ...support.models.archives import packed
from ...support.pipelines.texts import bert
from .conftest import Shelf


@pytest.mark.slow
def test_folder_and_archive_same_release(shelf: Shelf) -> None:
    """A folder and an archive of a BERT become the same release."""
    folder = bert(shelf.folder / "made", "ForSequenceClassification")
    address = shelf.put_folder("team/ranker", folder)
    shelf.put("team/packed.tar.gz", packed(folder))
    artifacts = shelf.folder / "artifacts"
    document = compile_model(artifacts, address, "--no-check-served")
    assert (document["name"], document["verdict"]) == ("ranker", "passed")
    spec = next(Path(document["repository"]).resolve().parent.rglob("spec.yaml")).read_text()
    assert f"source: {address}@" in spec
    again = compile_model(artifacts, shelf.address("team/packed.tar.gz"), "--no-check-served", "--name", "ranker")
    steps = {step["name"]: step["cached"] for step in again["steps"]}
    assert not steps["fetch"]
    assert steps["export"]
    assert steps["compile"]
