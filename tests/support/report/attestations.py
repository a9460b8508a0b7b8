"""A release's provenance and bill of materials, read by the libraries of their formats and by tools of others."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from plansmith.records.release import BOM_FILE, MANIFEST_FILE, PROVENANCE_FILE, REPORT_FILE, SIGNATURE_FILE

_NOT_COVERED = {MANIFEST_FILE, REPORT_FILE, PROVENANCE_FILE, SIGNATURE_FILE}
_LIB4SBOM = """
import json, sys
from lib4sbom.parser import SBOMParser
parser = SBOMParser(sbom_type="cyclonedx")
parser.parse_file(sys.argv[1])
print(json.dumps([entry["name"] for entry in (*parser.get_packages(), *parser.get_files())]))
"""


def read_provenance(text: str) -> dict[str, Any]:
    """The statement, as in-toto's library and sigstore's read it; neither ignores what it does not know."""
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message
    from sigstore import dsse
    from sigstore.dsse._predicate import SLSAPredicateV1_0  # what `sigstore attest` accepts

    statement = Statement.copy_from_pb(json_format.Parse(text, Message()))
    statement.validate()
    predicate = json_format.MessageToDict(statement.pb.predicate)
    json_format.ParseDict(predicate, Provenance())
    dsse.Statement(text.encode())
    SLSAPredicateV1_0.model_validate(predicate)
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def read_bom(text: str) -> dict[str, Any]:
    """The bill of materials, valid by CycloneDX' own strict schema."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def names_in_bom(path: Path) -> set[str]:
    """The components of a bill of materials, as lib4sbom finds them; in a process, as it leaves files open."""
    done = subprocess.run([sys.executable, "-c", _LIB4SBOM, str(path)], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def check_release(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read both files of a release; the provenance must cover the others as they lie there. Return both."""
    statement = read_provenance((folder / PROVENANCE_FILE).read_text(encoding="utf-8"))
    bom = read_bom((folder / BOM_FILE).read_text(encoding="utf-8"))
    covered = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert covered == {name: digest for name, digest in digests.items() if name not in _NOT_COVERED}
    assert {component["name"] for component in bom["components"]} <= names_in_bom(folder / BOM_FILE)
    hashes = {entry["name"]: entry["hashes"][0]["content"] for entry in bom["components"] if entry["type"] == "file"}
    assert hashes
    assert hashes.items() <= digests.items()
    return statement, bom
