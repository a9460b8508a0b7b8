"""Whatever is changed in a delivery: it is refused, or it is read as one; it never is an error of ours."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable
from typing import Any

from plansmith.triggers.registries.mlflow import HEADERS

from ..support.deliveries.asgi import Answer, ask
from ..support.deliveries.receiving import NOW, Receiver
from ..support.deliveries.recorded import ALIAS_SET, DELIVERIES, SECRET, Sent, signed
from .registries.test_hub_deliveries import PUSH

_ROUNDS = 400
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1e308,
    "",
    "\0",
    "\ud800",
    "x" * 3000,
    "../..",
    "refs/heads/",
    [],
    [[]],
    {},
    {"name": {}},
    "٣",
    "a\r\nb",
)


def _cut(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randrange(len(body))]


def _flip(body: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(body))
    return body[:place] + bytes([body[place] ^ 1 << chance.randrange(8)]) + body[place + 1 :]


def _insert(body: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(body))
    return body[:place] + chance.randbytes(chance.randrange(1, 9)) + body[place:]


def _double(body: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(body))
    return body[:begin] + 2 * body[begin : begin + chance.randrange(1, 40)] + body[begin:]


def _replace_value(body: bytes, chance: random.Random) -> bytes:
    """The same object with one of its values, somewhere in it, become another."""
    value = json.loads(body)
    inside: Any = value
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        key = chance.choice(keys)
        if isinstance(inside[key], dict | list) and inside[key] and chance.random() < 0.8:
            inside = inside[key]
            continue
        inside[key] = chance.choice(_ODD)
        return json.dumps(value).encode()


_CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _flip, _insert, _double, _replace_value)


def _change_of_headers(sent: Sent, chance: random.Random) -> Sent:
    name = chance.choice([HEADERS.delivery, HEADERS.timestamp, HEADERS.signature])
    value = sent.headers[name]
    replacement = chance.choice(
        [
            "",
            f"{value} ",
            value[:-1],
            value + value,
            value.swapcase() if value.swapcase() != value else "0",
            value.replace("1", "١").encode().decode("latin-1") + "é",
            base64.b64encode(chance.randbytes(32)).decode(),
            "9" * 5000,
            "-1",
            "nan",
        ]
    )
    return Sent(sent.headers | {name: replacement}, sent.body)


def _posted(receiver: Receiver, requests: list[Sent], path: str) -> list[Answer]:
    async def one_after_another() -> list[Answer]:
        return [await ask(receiver.app, "POST", path, request.body, headers=request.headers) for request in requests]

    return asyncio.run(one_after_another())


def test_unsigned_mutations_refused() -> None:
    """Whatever is changed without the secret is refused."""
    chance = random.Random(11)
    receiver = Receiver(per_minute=10_000)
    changed = []
    for _ in range(_ROUNDS):
        sent = chance.choice(DELIVERIES[:4])
        if chance.random() < 0.5:
            changed.append(_change_of_headers(sent, chance))
        else:
            changed.append(Sent(sent.headers, chance.choice(_CHANGES)(sent.body, chance)))
    changed = [item for item in changed if item not in DELIVERIES]
    assert len(changed) > 0.95 * _ROUNDS
    answers = _posted(receiver, changed, "/hooks/ours")
    assert {answer.status for answer in answers} == {401}
    assert {answer.body for answer in answers} == {b""}
    assert not receiver.inbox.deliveries


def test_signed_mutations_malformed_or_meaningful() -> None:
    """Whatever is changed by someone who knows the secret is malformed or means something."""
    chance = random.Random(12)
    receiver = Receiver(per_minute=10_000)
    bodies = [chance.choice(_CHANGES)(chance.choice(DELIVERIES[:8]).body, chance) for _ in range(_ROUNDS)]
    changed = [signed(HEADERS, body, delivery=f"d{number}") for number, body in enumerate(bodies)]
    statuses = [answer.status for answer in _posted(receiver, changed, "/hooks/ours")]
    assert set(statuses) == {202, 204, 400}
    assert statuses.count(400) > _ROUNDS / 2
    _assert_plain(receiver)


def test_push_mutations_malformed_or_meaningful() -> None:
    """Whatever is changed in a push is malformed or means something."""
    chance = random.Random(13)
    receiver = Receiver(per_minute=10_000)
    body = json.dumps(PUSH).encode()
    changed = [Sent({"x-webhook-secret": SECRET}, chance.choice(_CHANGES)(body, chance)) for _ in range(_ROUNDS)]
    statuses = [answer.status for answer in _posted(receiver, changed, "/hooks/hub")]
    assert set(statuses) == {202, 204, 400}
    assert statuses.count(400) > _ROUNDS / 4
    _assert_plain(receiver)


def test_original_delivery_accepted() -> None:
    """The delivery that all of them began as is taken."""
    receiver = Receiver()
    assert ALIAS_SET.timestamp == NOW
    assert receiver.post(ALIAS_SET, "/hooks/ours").status == 202


def _assert_plain(receiver: Receiver) -> None:
    """What was stored can be stored: short, printable text."""
    events = [event for events in receiver.inbox.deliveries.values() for event in events]
    assert events
    for text in (text for event in events for text in event.model_dump(exclude={"at"}).values()):
        assert text.isprintable()
        assert len(text) < 1200
        assert text.encode().decode() == text
