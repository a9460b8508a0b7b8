"""A SARIF log has what SARIF 2.1.0 asks for (docs.oasis-open.org/sarif/sarif/v2.1.0), and no more than it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator

from plansmith.triton.checker.checker import all_rules
from plansmith.triton.checker.findings import Finding, sarif_log

FOUND = Finding(
    rule="config.dims",
    severity="error",
    model="tiny",
    place="tiny/config.pbtxt",
    line=3,
    message="a dim of 0",
    remedy="write -1",
)
WHOLE = FOUND.model_copy(
    update={"rule": "layout.no-model", "severity": "warning", "model": "", "place": ".", "line": 0}
)


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """A schema of an object that has these properties and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT = {"type": "string", "minLength": 1}
MESSAGE = closed(("text",), text=TEXT)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
PLACE = closed(
    ("artifactLocation",),
    artifactLocation=closed(
        ("uri",), uri={"type": "string", "pattern": r"^[A-Za-z0-9._~/%!$&'()*+,;=:@-]+$"}, uriBaseId=TEXT
    ),
    region=closed(startLine={"type": "integer", "minimum": 1}),
)
LOG = closed(
    ("version", "runs"),
    **{"$schema": {"type": "string", "format": "uri"}},
    version={"const": "2.1.0"},
    runs={
        "type": "array",
        "items": closed(
            ("tool",),
            tool=closed(
                ("driver",),
                driver=closed(
                    ("name",),
                    name=TEXT,
                    version=TEXT,
                    rules={
                        "type": "array",
                        "uniqueItems": True,
                        "items": closed(
                            ("id",),
                            id=TEXT,
                            shortDescription=MESSAGE,
                            help=MESSAGE,
                            defaultConfiguration=closed(level=LEVEL),
                        ),
                    },
                ),
            ),
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            results={
                "type": "array",
                "items": closed(
                    ("message",),
                    ruleId=TEXT,
                    ruleIndex={"type": "integer", "minimum": -1},
                    level=LEVEL,
                    message=MESSAGE,
                    locations={
                        "type": "array",
                        "items": closed(
                            physicalLocation=PLACE,
                            logicalLocations={"type": "array", "items": closed(name=TEXT, kind=TEXT)},
                        ),
                    },
                    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
                ),
            },
        ),
    },
)
"""What sections 3.13 to 3.52 of the standard say of the parts that are used here."""


@pytest.fixture
def log() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(sarif_log([FOUND, WHOLE], all_rules(), "srv/our models")))
    return document


def test_log_follows_standard(log: dict[str, Any]) -> None:
    """A log is what the standard describes."""
    Draft7Validator.check_schema(LOG)
    assert not list(Draft7Validator(LOG).iter_errors(log))


def test_results_point_to_rules_and_places(log: dict[str, Any]) -> None:
    """Results point to their rules and places."""
    (run,) = log["runs"]
    first, whole = run["results"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in (first, whole)] == ["config.dims", "layout.no-model"]
    assert first["message"]["text"] == "a dim of 0. Next: write -1"
    (place,) = first["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "srv/our%20models/tiny/config.pbtxt"
    assert place["physicalLocation"]["region"] == {"startLine": 3}
    assert place["logicalLocations"] == [{"name": "tiny", "kind": "module"}]
    (place,) = whole["locations"]
    assert place == {"physicalLocation": {"artifactLocation": {"uri": "srv/our%20models", "uriBaseId": "%SRCROOT%"}}}


@pytest.mark.parametrize(
    ("repository", "place", "uri"),
    [
        (".", "m/config.pbtxt", "m/config.pbtxt"),
        (".", ".", "."),
        ("models/", ".", "models"),
        ("/srv/models", "m/1", "file:///srv/models/m/1"),
        ("models", "m\udcff", "models/m%FF"),
    ],
)
def test_places_are_addresses_without_detours(repository: str, place: str, uri: str) -> None:
    finding = FOUND.model_copy(update={"place": place, "model": "m\udcff", "message": "m\udcff is odd"})
    document = json.loads(json.dumps(sarif_log([finding], all_rules(), repository)).encode())
    assert not list(Draft7Validator(LOG).iter_errors(document))
    (result,) = document["runs"][0]["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == ({"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": "%SRCROOT%"})
    json.dumps(document, ensure_ascii=False).encode()


def test_finding_recognised_after_line_move() -> None:
    """A finding is known again where only lines moved."""
    moved, variant = FOUND.model_copy(update={"line": 7}), FOUND.model_copy(update={"message": "a dim of -2"})
    prints = [
        json.dumps(result["partialFingerprints"])
        for result in sarif_log([FOUND, moved, variant], all_rules(), "m")["runs"][0]["results"]
    ]
    assert prints[0] == prints[1] != prints[2]
