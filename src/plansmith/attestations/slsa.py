"""Provenance of a release: an in-toto statement with SLSA provenance about the files of the release."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from plansmith.config.triton import FILE_FOLDERS
from plansmith.errors import UsageError
from plansmith.records.release import BOM_FILE, PROVENANCE_FILE, Manifest
from plansmith.system.urls import without_secrets

if TYPE_CHECKING:
    from plansmith.attestations.materials import BuildRun, Material

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
"""Of SLSA 1.0 to 1.2."""

BUILD_TYPE = "urn:plansmith:compile:v1"
"""Names the meaning of the parameters: docs/provenance.md."""

BUILDER_VARIABLE = "PLANSMITH_BUILDER_ID"
LOCAL_BUILDER = "urn:plansmith:local"
"""A builder that nothing else is known of."""

_NOT_STATED = "not stated"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_LOCATIONS = {"artifacts", "repository", "shared_cache", "publish", "load_into", "tritonserver"}
"""Fields of a spec that say where things are on the machine and where a release goes: not what it is made of."""
_PATHS = {"source", "replaces", "path", "script", "target", "trtexec", "plugins", *FILE_FOLDERS}
"""Fields of a spec, at any depth, that may hold a path."""


def builder_id() -> str:
    """Return the builder's URI, which the environment may set.

    Raises:
        UsageError: it is no URI, or may hold a secret.
    """
    uri = os.environ.get(BUILDER_VARIABLE) or LOCAL_BUILDER
    if not _URI.fullmatch(uri) or without_secrets(uri) != uri:
        raise UsageError(
            f"{BUILDER_VARIABLE} is no URI without user, password and query",
            remedy=f"export {BUILDER_VARIABLE}=https://ci.example.com/builders/models",
        )
    return uri


def attestations_of(manifest: Manifest, run: BuildRun, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the bill of materials and the provenance of a release, by file name.

    The provenance covers the files in the manifest, further texts and the bill of materials. It covers neither the
    manifest nor the report: these tell the version number, which a store may change.

    Args:
        manifest: of the release.
        run: made it.
        texts: further files of the release by name and content.
    """
    from plansmith.attestations.bom import bom_of

    covered = {**texts, BOM_FILE: bom_of(manifest, run)}
    files = {file.path: file.sha256 for file in manifest.files}
    files |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in covered.items()}
    return {BOM_FILE: covered[BOM_FILE], PROVENANCE_FILE: provenance_of(manifest, run, files)}


def provenance_of(manifest: Manifest, run: BuildRun, files: Mapping[str, str]) -> str:
    """Return the provenance of a release, as an unsigned in-toto statement in JSON.

    Args:
        manifest: of the release.
        run: made it.
        files: SHA-256 by path, of the files that the statement is about.
    """
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    from plansmith.attestations.materials import materials_of, tools_of

    values: dict[str, Any] = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "spec": _without_folders({key: manifest.spec[key] for key in manifest.spec if key not in _LOCATIONS})
            },
            "internalParameters": {
                "target": manifest.target,
                "exporter": manifest.onnx.exporter,
                "engine": str(manifest.engine.kind),
                "precision": str(manifest.engine.precision),
                "gpus": {capability: plan.gpu.name for capability, plan in manifest.engine.plans.items()},
                "steps": [{"name": step.name, "cached": step.cached} for step in manifest.steps],
            },
            "resolvedDependencies": [_dependency(material) for material in materials_of(manifest)],
        },
        "runDetails": {
            "builder": {"id": run.builder, "version": {"plansmith": manifest.plansmith, **tools_of(manifest, run)}},
            "metadata": {
                "invocationId": uuid5(NAMESPACE_URL, f"{BUILD_TYPE}:{manifest.release_digest}:{manifest.created}").urn,
                "startedOn": run.started.astimezone(UTC).isoformat(timespec="milliseconds"),
                "finishedOn": manifest.created,
            },
        },
    }
    predicate = json_format.ParseDict(values, Provenance())  # refuses what SLSA does not define
    subjects = [ResourceDescriptor(name=path, digest={"sha256": sha256}).pb for path, sha256 in sorted(files.items())]
    statement = Statement(subjects, PREDICATE_TYPE, json_format.MessageToDict(predicate))
    statement.validate()
    document = json_format.MessageToDict(statement.pb)
    document["predicate"]["buildDefinition"] = values["buildDefinition"]  # protobuf makes floats of all numbers
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _without_folders(value: Any, key: str = "") -> Any:
    """Return the values of a spec with paths by their names alone."""
    from plansmith.attestations.materials import without_folder

    if isinstance(value, dict):
        return {name: _without_folders(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item, key) for item in value]
    return without_folder(value) if isinstance(value, str) and key in _PATHS else value


def _dependency(material: Material) -> dict[str, Any]:
    """Return a resource descriptor of a material."""
    from plansmith.attestations.materials import DIGEST

    annotations = {DIGEST: material.digest} | ({"plansmith:note": material.note} if material.note else {})
    digest = {"digest": {"gitCommit": material.commit}} if material.commit else {}
    return {"name": material.name, "uri": material.uri, "annotations": annotations, **digest}


def describe_provenance(text: str) -> dict[str, Any]:
    """Return the facts of an in-toto statement with SLSA provenance, as nested JSON values.

    Raises:
        ValueError: it is none.
    """
    try:
        statement = json.loads(text)
        if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise ValueError("it holds another kind of statement than SLSA provenance v1")
        definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
        metadata = run.get("metadata", {})
        return {
            "build type": definition["buildType"],
            "made from": [_origin(entry) for entry in definition.get("resolvedDependencies", [])],
            "builder": run["builder"]["id"],
            "started": metadata.get("startedOn", _NOT_STATED),
            "finished": metadata.get("finishedOn", _NOT_STATED),
            "tools": dict(run["builder"].get("version", {})),
            "files": [_subject(subject) for subject in statement["subject"]],
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("it is no in-toto statement with SLSA provenance") from error


def _subject(subject: Mapping[str, Any]) -> str:
    """Return a file in a line: its name, and the beginning of its digests."""
    digests = (f"{algorithm} {digest[:12]}" for algorithm, digest in subject["digest"].items())
    return "  ".join((subject.get("name", ""), *digests))


def _origin(entry: Mapping[str, Any]) -> str:
    """Return a dependency in a line: its name, its URI, and its commit."""
    commit = entry.get("digest", {}).get("gitCommit", "")
    uri = entry.get("uri", "")
    shown = [entry.get("name", ""), uri, f"commit {commit}" if commit and commit not in uri else ""]
    return ", ".join(filter(None, shown))
