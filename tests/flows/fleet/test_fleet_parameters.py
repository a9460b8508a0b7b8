"""What fleets are asked with: fields of a spec over those of every model, folders, an API that may be away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault
from plansmith.fleet.overrides import SpecOverrides


def test_only_what_is_given_counts_over_a_spec() -> None:
    given = SpecOverrides.model_validate({"tensorrt": {"builder": "api"}, "target": ["local-cpu", "triton-26.03"]})
    assert set(given.given) == {"tensorrt", "target"}
    assert set(given.given["tensorrt"]) == {"builder"}
    assert given.given["target"] == ["local-cpu", "triton-26.03"]
    assert SpecOverrides().given == {}
    with pytest.raises(ValidationError, match="precison"):
        SpecOverrides.model_validate({"precison": "int8"})


def test_prefect_knows_the_fields_and_fills_in_none_of_them() -> None:
    from plansmith.flows.prefect_api.parameters import parameter_problems, schema_of

    for flow in ("compile-fleet", "refresh"):
        schema = schema_of(flow)
        fields = schema["definitions"]["SpecOverrides"]["properties"]
        assert set(fields) == set(ModelSpec.model_fields)
        assert not [name for name, field in fields.items() if "default" in field]
        assert schema["required"] == ["specs"]
        wrong = {"specs": ["a"], "overrides": {"precison": "int8"}, "pool": "gpu", "take_up_seconds": 0}
        words = [said for _, said in parameter_problems(wrong, schema)]
        assert len(words) == 3, words
        right = {"specs": ["a"], "overrides": {"precision": "int8"}, "pools": {"": "gpu"}, "models": ["b"]}
        assert not list(parameter_problems(right, schema))


def test_a_spec_becomes_the_parameters_of_a_run_and_stays_the_same() -> None:
    from plansmith.flows.prefect_api.parameters import parameter_problems, schema_of

    spec = ModelSpec.model_validate(
        {
            "source": "hf:model",
            "engine": "tensorrt",
            "precision": "int8",
            "data": {"path": "sentences.txt", "columns": {"text": "sentence"}},
            "shapes": {"input_ids": "1x1:2x8:4x16"},
            "tolerances": {"logits": {"min_cosine": 0.9}},
            "publish": "s3://bucket/prefix",
            "tensorrt": {"gpus": ["L4"], "builder": "api"},
        }
    )
    sent = spec.model_dump(mode="json", exclude_defaults=True)
    assert ModelSpec.model_validate(sent) == spec
    assert not list(parameter_problems({"spec": sent, "folder": "/models"}, schema_of("compile-model")))


def test_own_folders_of_a_spec_start_from_a_given_folder() -> None:
    from plansmith.flows.prefect_api.places import rooted

    spec = ModelSpec(source="hf:model", repository="/there/repository", target="own.yaml", publish=())
    found = rooted(spec, Path("/here"))
    assert (found.artifacts, found.repository) == ("/here/artifacts", "/there/repository")
    assert (found.target, found.tritonserver, found.source) == ("/here/own.yaml", "", "hf:model")


def test_an_api_that_is_away_is_asked_again_and_given_up_in_words() -> None:
    from plansmith.flows.prefect_api import patience

    told: list[str] = []
    answers: list[Any] = [httpx.ConnectError("refused"), RuntimeError("Failed to reach API at http://x"), "here"]
    assert patience.retry_while_unavailable(_answering(answers), told.append, pause=0) == "here"
    assert [line.partition(" (")[0] for line in told] == ["the Prefect API is away", "the Prefect API is there again"]
    with pytest.raises(EnvironmentFault, match="the Prefect API is away: refused") as given_up:
        patience.retry_while_unavailable(_answering([httpx.ConnectError("refused")] * 2), told.append, seconds=0)
    assert given_up.value.remedy
    with pytest.raises(httpx.HTTPStatusError):
        patience.retry_while_unavailable(_answering([_status(409), "never asked"]), told.append, pause=0)
    assert patience.retry_while_unavailable(_answering([_status(503), "here"]), told.append, pause=0) == "here"


def _answering(answers: list[Any]) -> Any:
    left = iter(answers)

    def ask() -> Any:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def _status(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/api")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(code, request=request))
