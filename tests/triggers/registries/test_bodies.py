"""A body means the same to every reader, or nothing."""

from __future__ import annotations

import pytest

from plansmith.triggers.registries.delivery import RequestRejected, read_object

WRONG = {
    "nothing": b"",
    "no JSON": b"{'a': 1}",
    "half of it": b'{"a": ',
    "more than one": b'{"a": 1} {"a": 2}',
    "a list": b"[]",
    "null": b"null",
    "a text": b'"a"',
    "a key twice": b'{"a": 1, "a": 2}',
    "a key twice, further down": b'{"a": [{"b": 1, "b": 1}]}',
    "a key twice, once escaped": rb'{"a": 1, "\u0061": 2}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a fraction that is infinite": b'{"a": 1e999}',
    "a number that no double holds": b'{"a": ' + b"9" * 30 + b"}",
    "a number of a million digits": b'{"a": ' + b"9" * 1_000_000 + b"}",
    "many levels": b'{"a": ' * 40 + b"1" + b"}" * 40,
    "many levels of lists": b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    "more levels than Python has": b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "more open levels than Python has": b'{"a":' * 200_000,
    "no UTF-8": b'{"a": "\xff"}',
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a control character": b'{"a": "\n"}',
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_non_json_body_malformed(body: bytes) -> None:
    """A body that is not plain JSON is malformed."""
    with pytest.raises(RequestRejected, match="malformed"):
        read_object(body)


def test_object_read_unchanged() -> None:
    """An object is read as it is."""
    assert read_object(' {"é": [1, -2.5, true, null, {"b": {}}]}\n'.encode()) == {"é": [1, -2.5, True, None, {"b": {}}]}
