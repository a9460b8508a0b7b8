"""Checker findings, and the rules that they belong to."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from plansmith import __version__
from plansmith.records.model import Record

Severity = Literal["error", "warning", "note"]
"""An error: Triton refuses the model, or requests fail; a warning: it does not do what was meant; a note: advice."""

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
_ROOT = "%SRCROOT%"
_FINGERPRINT = "plansmith/v1"


class Finding(Record):
    """A finding: one problem in a repository.

    `rule`: the stable id of what was broken; `model`: the name of its folder, empty for the repository as a whole;
    `place`: the file or folder, relative to the repository, which itself is "."; `line`: in it from 1, 0 where there is
    none.
    """

    rule: str
    severity: Severity
    model: str
    place: str
    line: int = 0
    message: str
    remedy: str


@dataclass(frozen=True)
class Rule:
    """A rule that a correctly served repository satisfies.

    Args:
        id: stable; the area and the rule, such as "layout.version-name".
        severity: of what breaks it.
        summary: what holds, in one sentence.
        source: who says so: a file of Triton's sources, a page of its documentation, or what a server was seen to do.
    """

    id: str
    severity: Severity
    summary: str
    source: str

    def broken(self, message: str, *, model: str, place: str, remedy: str, line: int = 0) -> Finding:
        """Return the finding for a violation of the rule."""
        return Finding(
            rule=self.id, severity=self.severity, model=model, place=place, line=line, message=message, remedy=remedy
        )


def sarif_log(findings: Sequence[Finding], rules: Sequence[Rule], repository: str) -> dict[str, Any]:
    """Return a SARIF log of one run, ready for JSON.

    Args:
        findings: what was found.
        rules: all that were held against the repository.
        repository: the folder, as readers of the log find it from the root of what they review; with slashes, and
            from the root of the file system where it lies elsewhere.
    """
    numbers = {rule.id: number for number, rule in enumerate(rules)}
    driver = {"name": "plansmith", "version": __version__, "rules": [_descriptor(rule) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, numbers[finding.rule], repository) for finding in findings],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _descriptor(rule: Rule) -> dict[str, Any]:
    """A SARIF reportingDescriptor (3.49)."""
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}. Source: {rule.source}"},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, number: int, repository: str) -> dict[str, Any]:
    """A SARIF result (3.27); its level (3.27.10) uses the names of the severities."""
    physical: dict[str, Any] = {"artifactLocation": _artifact(posixpath.join(repository, finding.place))}
    if finding.line:
        physical["region"] = {"startLine": finding.line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if finding.model:
        location["logicalLocations"] = [{"name": _as_text(finding.model), "kind": "module"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": finding.severity,
        "message": {"text": _as_text(f"{finding.message}. Next: {finding.remedy}")},
        "locations": [location],
        "partialFingerprints": {_FINGERPRINT: _fingerprint(finding)},
    }


def _artifact(place: str) -> dict[str, str]:
    """A SARIF artifactLocation (3.4); file names are bytes and may not be valid text."""
    address = quote(os.fsencode(posixpath.normpath(place)))
    return {"uri": f"file://{address}"} if address.startswith("/") else {"uri": address, "uriBaseId": _ROOT}


def _as_text(text: str) -> str:
    """Replace every undecodable byte of a name, as JSON readers need not accept such names."""
    return os.fsencode(text).decode(errors="replace")


def _fingerprint(finding: Finding) -> str:
    """A SARIF partial fingerprint (3.27.17): stays the same where only lines move."""
    content = "\0".join((finding.rule, finding.place, finding.message))
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()
