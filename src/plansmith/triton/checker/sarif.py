"""Findings as a SARIF log, which tools of code review show beside the lines that they are about.

The format is SARIF 2.1.0 (docs.oasis-open.org/sarif/sarif/v2.1.0); section numbers below are that document's. Places
are relative to a folder that readers call %SRCROOT%, as GitHub's code scanning wants them; those of a repository
elsewhere are whole addresses, as relative ones could not lead out of that folder.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from plansmith import __version__
from plansmith.triton.checker.findings import Finding, Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"

_ROOT = "%SRCROOT%"
_FINGERPRINT = "plansmith/v1"


def sarif_log(findings: Sequence[Finding], rules: Sequence[Rule], repository: str) -> dict[str, Any]:
    """A log of one run, ready for JSON.

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
    """A reportingDescriptor (3.49)."""
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}. Source: {rule.source}"},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, number: int, repository: str) -> dict[str, Any]:
    """A result (3.27); its level (3.27.10) has the words that severities have here."""
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
    """An artifactLocation (3.4); names are bytes to the file system, and not all of them are text."""
    address = quote(os.fsencode(posixpath.normpath(place)))
    return {"uri": f"file://{address}"} if address.startswith("/") else {"uri": address, "uriBaseId": _ROOT}


def _as_text(words: str) -> str:
    """Words with a mark for every byte of a name that is no text, as no reader of JSON has to take such."""
    return os.fsencode(words).decode(errors="replace")


def _fingerprint(finding: Finding) -> str:
    """What stays the same where only lines move (3.27.17)."""
    said = "\0".join((finding.rule, finding.place, finding.message))
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()
