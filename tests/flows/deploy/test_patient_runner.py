"""The runner of `plansmith flows serve` and a server that is away, without a server."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from plansmith.flows.deploy.patient_runner import forgiving


def test_a_server_that_is_away_is_told_once_and_does_not_end_the_asking() -> None:
    answers: list[Exception | None] = [
        None,
        *[httpx.ConnectError("refused")] * 5,
        None,
        None,
        httpx.ReadTimeout("slow"),
    ]
    told: list[str] = []

    async def ask() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    asked = forgiving(ask, told.append)
    for _ in range(len(answers)):
        asyncio.run(asked())
    assert [words.partition(" (")[0] for words in told] == [
        "the Prefect server is away",
        "the Prefect server is there again",
        "the Prefect server is away",
    ]
    assert not answers


def test_a_server_that_refuses_ends_the_asking() -> None:
    request = httpx.Request("POST", "http://127.0.0.1/api")

    async def ask() -> None:
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(401, request=request))

    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(forgiving(ask, lambda _: None)())
