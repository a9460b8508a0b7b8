"""The runner of `plansmith flows serve` and a server that is away, without a server."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from plansmith.flows.deploy.serving import forgiving


def test_absent_server_told_once() -> None:
    """A server that is away is told once and does not end the asking."""
    answers: list[Exception | None] = [
        None,
        *[httpx.ConnectError("refused")] * 5,
        None,
        None,
        httpx.ReadTimeout("slow"),
    ]
    messages: list[str] = []

    async def ask() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    patient_ask = forgiving(ask, messages.append)
    for _ in range(len(answers)):
        asyncio.run(patient_ask())
    assert [message.partition(" (")[0] for message in messages] == [
        "the Prefect server is away",
        "the Prefect server is there again",
        "the Prefect server is away",
    ]
    assert not answers


def test_refusing_server_ends_asking() -> None:
    """A server that refuses ends the asking."""
    request = httpx.Request("POST", "http://127.0.0.1/api")

    async def ask() -> None:
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(401, request=request))

    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(forgiving(ask, lambda _: None)())
