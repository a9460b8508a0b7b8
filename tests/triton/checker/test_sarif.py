"""A SARIF log has what SARIF 2.1.0 asks for (docs.oasis-open.org/sarif/sarif/v2.1.0), and no more than it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator

from plansmith.triton.checker.checker import all_rules
from plansmith.triton.checker.findings import Finding
from plansmith.triton.checker.sarif import sarif_log

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
    found: dict[str, Any] = json.loads(json.dumps(sarif_log([FOUND, WHOLE], all_rules(), "srv/our models")))
    return found


def test_a_log_is_what_the_standard_describes(log: dict[str, Any]) -> None:
    Draft7Validator.check_schema(LOG)
    assert not list(Draft7Validator(LOG).iter_errors(log))


def test_results_point_to_their_rules_and_places(log: dict[str, Any]) -> None:
    (run,) = log["runs"]
    found, whole = run["results"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in (found, whole)] == ["config.dims", "layout.no-model"]
    assert found["message"]["text"] == "a dim of 0. Next: write -1"
    (place,) = found["locations"]
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
    found = FOUND.model_copy(update={"place": place, "model": "m\udcff", "message": "m\udcff is odd"})
    made = json.loads(json.dumps(sarif_log([found], all_rules(), repository)).encode())
    assert not list(Draft7Validator(LOG).iter_errors(made))
    (result,) = made["runs"][0]["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == ({"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": "%SRCROOT%"})
    json.dumps(made, ensure_ascii=False).encode()


def test_a_finding_is_known_again_where_only_lines_moved() -> None:
    moved, other = FOUND.model_copy(update={"line": 7}), FOUND.model_copy(update={"message": "a dim of -2"})
    prints = [
        json.dumps(result["partialFingerprints"])
        for result in sarif_log([FOUND, moved, other], all_rules(), "m")["runs"][0]["results"]
    ]
    assert prints[0] == prints[1] != prints[2]
