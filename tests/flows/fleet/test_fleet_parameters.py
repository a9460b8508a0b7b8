"""What fleets are asked with: fields of a spec over those of every model, folders, an API that may be away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault
from plansmith.fleet.members import SpecOverrides


def test_given_values_beat_spec() -> None:
    """Only what is given counts over a spec."""
    overrides = SpecOverrides.model_validate({"tensorrt": {"builder": "api"}, "target": ["local-cpu", "triton-26.03"]})
    assert set(overrides.values) == {"tensorrt", "target"}
    assert set(overrides.values["tensorrt"]) == {"builder"}
    assert overrides.values["target"] == ["local-cpu", "triton-26.03"]
    assert SpecOverrides().values == {}
    with pytest.raises(ValidationError, match="precison"):
        SpecOverrides.model_validate({"precison": "int8"})


def test_prefect_knows_unfilled_fields() -> None:
    """Prefect knows the fields and fills in none of them."""
    from plansmith.flows.prefect_api.api import parameter_problems, schema_of

    for flow in ("compile-fleet", "refresh"):
        schema = schema_of(flow)
        fields = schema["definitions"]["SpecOverrides"]["properties"]
        assert set(fields) == set(ModelSpec.model_fields)
        assert not [name for name, field in fields.items() if "default" in field]
        assert schema["required"] == ["specs"]
        wrong = {"specs": ["a"], "overrides": {"precison": "int8"}, "pool": "gpu", "take_up_seconds": 0}
        messages = [message for _, message in parameter_problems(wrong, schema)]
        assert len(messages) == 3, messages
        right = {"specs": ["a"], "overrides": {"precision": "int8"}, "pools": {"": "gpu"}, "models": ["b"]}
        assert not list(parameter_problems(right, schema))


def test_spec_survives_as_parameters() -> None:
    """A spec becomes the parameters of a run and stays the same."""
    from plansmith.flows.prefect_api.api import parameter_problems, schema_of

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


def test_spec_folders_start_from_given() -> None:
    """Own folders of a spec start from a given folder."""
    from plansmith.flows.prefect_api.api import rooted

    spec = ModelSpec(source="hf:model", repository="/there/repository", target="own.yaml", publish=())
    rooted_spec = rooted(spec, Path("/here"))
    assert (rooted_spec.artifacts, rooted_spec.repository) == ("/here/artifacts", "/there/repository")
    assert (rooted_spec.target, rooted_spec.tritonserver, rooted_spec.source) == ("/here/own.yaml", "", "hf:model")


def test_absent_api_given_up() -> None:
    """An API that is away is asked again and given up in words."""
    from plansmith.flows.prefect_api import patience

    messages: list[str] = []
    answers: list[Any] = [httpx.ConnectError("refused"), RuntimeError("Failed to reach API at http://x"), "here"]
    assert patience.retry_while_unavailable(_answering(answers), messages.append, pause=0) == "here"
    assert [line.partition(" (")[0] for line in messages] == [
        "the Prefect API is away",
        "the Prefect API is there again",
    ]
    with pytest.raises(EnvironmentFault, match="the Prefect API is away: refused") as given_up:
        patience.retry_while_unavailable(_answering([httpx.ConnectError("refused")] * 2), messages.append, seconds=0)
    assert given_up.value.remedy
    with pytest.raises(httpx.HTTPStatusError):
        patience.retry_while_unavailable(_answering([_status(409), "never asked"]), messages.append, pause=0)
    assert patience.retry_while_unavailable(_answering([_status(503), "here"]), messages.append, pause=0) == "here"


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
