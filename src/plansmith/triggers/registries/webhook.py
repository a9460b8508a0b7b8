"""Generic signed webhooks: "build this version of this model".

A request is a POST of a JSON object:

    {"model": "ranker", "version": "2026-11-20", "source": "hf:org/ranker@<commit>"}

`version` names the content for good: what was built of it once is not built again. `source` is the spec's source for
exactly this content, one of those that `sources` in the service's file allows, as a spec may trust what it is made of;
left out, the spec's own stays. Nothing else may stand in it. Its headers:

    X-Plansmith-Delivery-Id: at most 128 of A-Z a-z 0-9 _ -, the same when a request is repeated
    X-Plansmith-Timestamp: the Unix time in seconds
    X-Plansmith-Signature: v1,<base64 of HMAC-SHA256 with the secret over "<id>.<timestamp>." and the body>

From a shell, with the secret in $SECRET:

    body='{"model":"ranker","version":"7"}' id=$(uuidgen) now=$(date +%s)
    code=$(printf %s "$id.$now.$body" | openssl dgst -sha256 -hmac "$SECRET" -binary | base64)
    curl --data-binary "$body" -H "X-Plansmith-Delivery-Id: $id" -H "X-Plansmith-Timestamp: $now" \
        -H "X-Plansmith-Signature: v1,$code" https://plansmith.example.com/hooks/NAME

An answer of 202 says that it is stored. After 408, 429 and 5xx, or none, repeat it with the same id; and with the same
time and signature while the registry's window lasts, five minutes unless the service's file says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plansmith.config.service_triggers import HookRegistry
from plansmith.triggers.registries.delivery import (
    Delivery,
    Event,
    Ignored,
    RequestRejected,
    SignedHeaders,
    name_of,
    proven_id,
    read_object,
)
from plansmith.triggers.registries.rules import is_allowed

HEADERS = SignedHeaders("x-plansmith-delivery-id", "x-plansmith-timestamp", "x-plansmith-signature")

_KEYS = {"model", "version", "source"}
_LONGEST_SOURCE = 2048


def read_delivery(
    config: HookRegistry,
    headers: Mapping[str, str],
    body: bytes,
    *,
    registry: str,
    secrets: Sequence[str],
    now: float,
) -> Delivery | Ignored:
    """Parse a webhook request.

    Args:
        config: of the registry.
        headers: with names in lower case.
        body: its bytes as they came.
        registry: the registry's name.
        secrets: any of them may have signed the request.
        now: our Unix time.

    Raises:
        RequestRejected: it is of nobody who knows a secret, not of now, or not what stands above.
    """
    delivery_id = proven_id(HEADERS, headers, body, secrets=secrets, window_seconds=config.window_seconds, now=now)
    values = read_object(body)
    if values.keys() - _KEYS:
        raise RequestRejected("malformed", "it has a key that means nothing here")
    source = name_of(values, "source", longest=_LONGEST_SOURCE) if "source" in values else ""
    if source and not is_allowed(source, config.sources):
        raise RequestRejected("malformed", "source is none of those that are allowed")
    model, version = name_of(values, "model"), name_of(values, "version")
    event = Event(registry=registry, model=model, version=version, change="asked", source=source)
    return Delivery(id=delivery_id, events=(event,), expires=True)
