"""What an MLflow server of version 3.17.2 sent, and requests that are signed as it signs them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.triggers.registries.delivery import SignedHeaders, signature_of

_FILE = json.loads(Path(__file__).with_name("mlflow_deliveries.json").read_text(encoding="utf-8"))
SECRET: str = _FILE["secret"]


@dataclass(frozen=True)
class Sent:
    """A request as it came."""

    headers: dict[str, str]
    body: bytes

    @property
    def timestamp(self) -> int:
        return int(self.headers["x-mlflow-timestamp"])


DELIVERIES = tuple(Sent(one["headers"], one["body"].encode()) for one in _FILE["deliveries"])
VERSION_CREATED, TAG_SET, ALIAS_SET = DELIVERIES[1:4]
TEST = DELIVERIES[7]


def signed(
    names: SignedHeaders,
    value: Any,
    *,
    secret: str = SECRET,
    delivery: str = "d1",
    timestamp: str = "1795165608",
) -> Sent:
    """A request with a right signature; its body is JSON unless it is given as bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    signature = signature_of(secret, delivery, timestamp, body)
    return Sent({names.delivery: delivery, names.timestamp: timestamp, names.signature: signature}, body)
