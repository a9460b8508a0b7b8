"""A shipped spec with a pipeline through the real command and the real Triton."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from plansmith.triton.client import Client

from ..support.cli.commands import compile_model, serve
from ..support.pipelines.columns import column
from ..support.real_sentences import real_sentences

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end-to-end")]

SHIPPED = Path(__file__).parents[2] / "configs" / "models"


def test_the_shipped_spec_that_needs_no_hub_finds_other_entities_in_every_sentence(tmp_path: Path) -> None:
    made = compile_model(tmp_path / "artifacts", str(SHIPPED / "bert-entities-random.yaml"))
    assert (made["verdict"], list(made["members"])) == ("passed", ["text", "model", "tags"])
    asked = real_sentences()[:32]
    with (
        serve(made["repository"], "bert-entities-random", tmp_path / "said") as (http, _),
        Client(http, model="bert-entities-random") as client,
    ):
        answers = [
            client.infer({"text": column(*(text.encode() for text in asked[start : start + 16]))})["entities"]
            for start in (0, 16)
        ]
    found = [json.loads(text) for text in np.concatenate(answers).reshape(-1)]
    assert {one["entity_group"] for entities in found for one in entities} == {"PER", "ORG", "LOC", "MISC"}
    assert len({tuple((one["entity_group"], one["word"]) for one in entities) for entities in found}) == len(asked)
    for text, entities in zip(asked, found, strict=True):
        places = [(one["start"], one["end"]) for one in entities]
        assert places == sorted(places)
        assert all(0 <= start < end <= len(text) for start, end in places)
