"""Requests of people who want something else than a build, each with the answers that it may get.

They know addresses and headers, they have seen deliveries on their way, and some know a secret and send nonsense.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from random import Random

from .hostile import (
    BODY_BYTES,
    HOOK,
    HUB,
    MLFLOW,
    NONE,
    SECRETS,
    Hostile,
    alias_set,
    chunked,
    right,
    signed_request,
    written,
)
from .recorded import Sent


def _may(*statuses: int) -> frozenset[int]:
    return frozenset(statuses)


def _plain(data: bytes, *statuses: int) -> Hostile:
    return Hostile((data,), _may(*statuses))


def _genuine(chance: Random) -> tuple[str, Sent]:
    """A right delivery that nobody ever sent, to be made wrong."""
    name = f"never-{chance.randrange(10**12)}"
    return (HOOK, signed_request(name)) if chance.random() < 0.5 else (MLFLOW, alias_set(name))


def _signature_of(sent: Sent) -> str:
    return next(name for name in sent.headers if name.endswith("signature"))


def forged(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    made_up = f"v1,{base64.b64encode(chance.randbytes(32)).decode()}"
    value = chance.choice([made_up, "", "v1,", "v1", "v2" + made_up[2:], made_up * 50, "v1," + "=" * 44])
    return _plain(right(Sent(sent.headers | {_signature_of(sent): value}, sent.body), path), 401)


def of_a_wrong_secret(chance: Random) -> Hostile:
    secret = chance.choice(["", "guessed", "KEPT-BY-CI", "kept-by-ci ", SECRETS[HUB], "kept-by-c", "\0"])
    path = chance.choice([HOOK, MLFLOW])
    sent = (signed_request if path == HOOK else alias_set)(f"never-{chance.randrange(10**9)}", secret=secret)
    return _plain(right(sent, path), 401)


def of_another_registry(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    return _plain(right(sent, MLFLOW if path == HOOK else HOOK), 401)


def flipped(chance: Random) -> Hostile:
    """A right one of which a single bit is wrong."""
    path, sent = _genuine(chance)
    name = chance.choice([*sent.headers, ""])
    if not name:
        place = chance.randrange(len(sent.body))
        body = bytearray(sent.body)
        body[place] ^= 1 << chance.randrange(8)
        return _plain(right(Sent(sent.headers, bytes(body)), path), 401)
    value = sent.headers[name]
    while True:
        place = chance.randrange(len(value))
        letter = chr(ord(value[place]) ^ 1 << chance.randrange(7))
        # Spaces around a value are not its own; and some letters may stand in no header.
        if letter.isprintable() and not letter.isspace():
            break
    changed = value[:place] + letter + value[place + 1 :]
    return _plain(right(Sent(sent.headers | {name: changed}, sent.body), path), 401)


def of_another_time(chance: Random) -> Hostile:
    seconds = chance.choice([-301, -400, -86_400, -1_700_000_000, 900, 4000, 10**9])
    path = chance.choice([HOOK, MLFLOW])
    sent = (signed_request if path == HOOK else alias_set)(f"never-{chance.randrange(10**9)}", seconds=seconds)
    return _plain(right(sent, path), 401)


def malformed(chance: Random) -> Hostile:
    """Signed by who knows the secret, and nothing that a hook says."""
    value = chance.choice(
        [
            b"",
            b"\0",
            b"{",
            b"[" * 30_000,
            b"{" * 30_000,
            b'{"model":"a","model":"a","version":"1"}',
            b'{"model":"a","version":' + b"9" * 30_000 + b"}",
            b'{"model":"a","version":1e999}',
            b'{"model":"a","version":NaN}',
            b"\xff\xfe" + '{"model":"a","version":"1"}'.encode("utf-16-le"),
            b'{"model":"\\ud800","version":"1"}',
            b'{"model":"a\\u0000","version":"1"}',
            json.dumps({"model": "a" * 40_000, "version": "1"}).encode(),
            json.dumps({"model": ["a"], "version": "1"}).encode(),
            json.dumps({"model": "a", "version": "1", "spec": "b"}).encode(),
            chance.randbytes(chance.randrange(1, 2000)),
        ]
    )
    return _plain(right(signed_request(f"never-{chance.randrange(10**9)}", value=value), HOOK), 400)


def compressed(chance: Random) -> Hostile:
    """A bomb, signed: no body is unpacked."""
    coding = chance.choice(["gzip", "deflate", "br", "gzip, gzip"])
    sent = signed_request("never-gzip", value=gzip.compress(b" " * 10**6 + b'{"model":"a","version":"1"}'))
    return _plain(written(HOOK, [*sent.headers.items(), ("Content-Encoding", coding)], sent.body), 400)


def oversized(chance: Random) -> Hostile:
    sent = signed_request("never-large", value=b" " * (BODY_BYTES + chance.randrange(1, 3 * BODY_BYTES)))
    return _plain(right(sent, HOOK), 413, NONE)


def without_end(chance: Random) -> Hostile:
    """Chunks for ever, to a hook and to where there is none."""
    path = chance.choice([HOOK, "/", "/metrics", "/hooks/none"])
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    return Hostile((chunked(path, Sent({}, b""), b""), chunk), _may(413, 404, 405, NONE), 0.001, endless=True)


def in_crumbs(chance: Random) -> Hostile:
    path = chance.choice([HOOK, "/"])
    return _plain(chunked(path, Sent({}, b""), b"1\r\nx\r\n" * 50_000), 401, 404, 405, 413, NONE)


def of_a_wrong_length(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    size = len(sent.body)
    length = chance.choice([size - 1, size - 7, 1, 0])
    return _plain(written(path, sent.headers.items(), sent.body, length=str(length)), 401, 400)


def of_a_length_that_is_none(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    length = chance.choice(["-1", "1e3", "9" * 400, "0x10", " ", "+5", "5, 6", "٣", "5\0"])
    return _plain(written(path, sent.headers.items(), sent.body, length=length), 400, 401, 413, 408, NONE)


def ended_in_two_ways(chance: Random) -> Hostile:
    """A length and chunks, or two lengths: what a proxy and a server may see two requests in."""
    path, sent = _genuine(chance)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent.body), sent.body)
    more = chance.choice(
        [
            [("Content-Length", str(len(sent.body))), ("Transfer-Encoding", "chunked")],
            [("Content-Length", "5"), ("Content-Length", "6")],
            [("Transfer-Encoding", "gzip, chunked")],
            [("Transfer-Encoding", "chunked, identity")],
            [("Transfer-Encoding", "\x0bchunked"), ("Content-Length", "4")],
        ]
    )
    return _plain(written(path, [*sent.headers.items(), *more], body, length=""), 400, 501, NONE)


def half_a_request(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    whole = right(sent, path)
    cut = whole[: chance.randrange(1, len(whole) - 1)]
    ending = chance.choice(["closes", "resets", "half-closes"])
    return Hostile((cut,), _may(400, NONE), ending=ending)


def slow_head(chance: Random) -> Hostile:
    whole = right(signed_request("never-slow"), HOOK)[: chance.randrange(0, 200)]
    return Hostile((whole, b"a: b\r\n"), _may(NONE, 400), 0.2, endless=True)


def slow_body(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    head, _, body = right(sent, path).partition(b"\r\n\r\n")
    begun = body[: chance.randrange(len(body) - 1)]
    return Hostile((head + b"\r\n\r\n", begun), _may(408, NONE))


def expecting(chance: Random) -> Hostile:
    """Waits to be told to go on, and does not."""
    path, sent = _genuine(chance)
    return _plain(written(path, [*sent.headers.items(), ("Expect", "100-continue")], b"", length="500"), 408, NONE)


def followed_by_garbage(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    bad = Sent(sent.headers | {_signature_of(sent): "v1,none"}, sent.body)
    first = right(bad, path).replace(b"Connection: close\r\n", b"")
    garbage = chance.choice([chance.randbytes(300), b"\r\n\r\n\r\n" * 50, b"GET /absent HTTP/9.9\r\n\r\n", b"\0"])
    return Hostile((first + garbage, b"\r\n\r\n"), _may(401, 400, 404, 421, 408, NONE), 0.01)


def of_many_headers(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    more = chance.choice(
        [
            [("a", "b")] * 3000,
            [(f"x-{number}", "y") for number in range(1200)],
            [("x-long", "y" * 100_000)],
            [("x" * 100_000, "y")],
            [(_signature_of(sent), "v1,none")] * 500,
            [("Cookie", "a=b; " * 4000)],
        ]
    )
    bad = sent.headers | {_signature_of(sent): "v1,none"}
    return _plain(written(path, [*bad.items(), *more], sent.body), 401, 400, 431, NONE)


def doubled(chance: Random) -> Hostile:
    """A right header and a second one beside it."""
    path, sent = _genuine(chance)
    name = chance.choice(list(sent.headers))
    extra = chance.choice([(name, "other"), (name.upper(), sent.headers[name]), (name.title(), "")])
    pairs = [*sent.headers.items(), extra] if chance.random() < 0.5 else [extra, *sent.headers.items()]
    return _plain(written(path, pairs, sent.body), 401)


def with_odd_letters(chance: Random) -> Hostile:
    path, sent = _genuine(chance)
    name = chance.choice(list(sent.headers))
    odd = chance.choice(["\0", "\udcff\udcfe", "é", "\x01", "\x7f", "\u202e", "\ufeff", "٣", "\x0b"])
    value = chance.choice([f"{sent.headers[name]}{odd}", f"{odd}{sent.headers[name]}", odd * 100])
    return _plain(right(Sent(sent.headers | {name: value}, sent.body), path), 401, 400)


_PLACES = (
    *("/hooks/none", "/hooks/", "/hooks", "/", "/hooks/ci/", "/hooks//ci", "//hooks/ci", "/hooks/CI", "/hooks/here"),
    *("/hooks/%2e%2e/metrics", "/hooks/..%2fhealthz", "/hooks/ci%00", "/hooks/ci%0d%0aX: y", "/hooks/%ff", "/.env"),
    *("/hooks/" + "a" * 5000, "*", "http://elsewhere.invalid/hooks/none", "/hooks/ci;x=1", "/hooks/%c0%ae", "/admin"),
)


def elsewhere(chance: Random) -> Hostile:
    """A right request to where nobody takes it."""
    path = chance.choice(_PLACES)
    return _plain(right(signed_request(f"never-{chance.randrange(10**9)}"), path), 404, 405, 400)


def of_another_kind(chance: Random) -> Hostile:
    method = chance.choice(["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "HEAD", "post", "POSTX"])
    sent = signed_request(f"never-{chance.randrange(10**9)}")
    return _plain(written(HOOK, sent.headers.items(), sent.body, method=method), 405, 400, 404)


def no_request_at_all(chance: Random) -> Hostile:
    data = chance.choice(
        [
            chance.randbytes(chance.randrange(1, 3000)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(300),  # TLS, where none is spoken
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"POST /hooks/ci\r\n\r\n",
            b"POST /hooks/ci HTTP/1.1\r\n\r\n",
            b"POST  /hooks/ci  HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\r\n" * 40_000,
            b"POST /hooks/ci HTTP/1.1\nHost: a\n bent: b\n\n",
            b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"",
        ]
    )
    return Hostile((data,), _may(400, 401, 404, 408, NONE), ending=chance.choice(["waits", "half-closes", "resets"]))


def upgrading(chance: Random) -> Hostile:
    path = chance.choice([HOOK, "/metrics"])
    more = [("Upgrade", chance.choice(["websocket", "h2c"])), ("Sec-WebSocket-Key", "AAAA")]
    data = written(path, more, b"", method="GET").replace(b"Connection: close", b"Connection: upgrade, close")
    return _plain(data, 405, 200, 400)


def of_the_hub(chance: Random) -> Hostile:
    """The secret of the Hub: none, a wrong one, one where it must not stand, or beside nonsense."""
    body = json.dumps({"event": {"scope": "repo.content", "action": "update"}}).encode()
    secret = SECRETS[HUB]
    path, header, status = chance.choice(
        [
            (HUB, "", 401),
            (HUB, secret[:-1], 401),
            (HUB, secret.upper(), 401),
            (HUB, f"{secret}, {secret}", 401),
            (f"{HUB}?secret={secret}", "", 401),
            (HUB, secret, 400),
        ]
    )
    return _plain(written(path, [("X-Webhook-Secret", header)], body), status)


Kind = Callable[[Random], Hostile]
KINDS: tuple[Kind, ...] = (
    *(forged, of_a_wrong_secret, of_another_registry, flipped, of_another_time, malformed, compressed, oversized),
    *(without_end, in_crumbs, of_a_wrong_length, of_a_length_that_is_none, ended_in_two_ways, half_a_request),
    *(slow_head, slow_body, expecting, followed_by_garbage, of_many_headers, doubled, with_odd_letters, elsewhere),
    *(of_another_kind, no_request_at_all, upgrading, of_the_hub),
)
