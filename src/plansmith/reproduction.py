"""How to make a release again: the spec with nothing left open, and a script that compiles it."""

from __future__ import annotations

from pathlib import Path

from plansmith.config import ModelSpec, escaped
from plansmith.sources.reference import SourceReference
from plansmith.types import SourceModel

_SCRIPT = """\
#!/bin/sh
# Does the same compile again from the spec beside this file, and publishes the result as a new version.
# Needs plansmith on PATH.
cd "$(dirname "$0")" && exec plansmith compile spec.yaml --force "$@"
"""


def reproduction(spec: ModelSpec, reference: SourceReference, source: SourceModel) -> dict[str, str]:
    """spec.yaml, with every default written out, folders in full and the source at its commit; reproduce.sh."""
    import yaml

    artifacts = Path(spec.artifacts).absolute()
    values = spec.model_dump(mode="json")
    if reference.full_path is not None:
        values["source"] = f"{reference.scheme}:{reference.full_path}"
    elif source.revision is not None:
        values["source"] = f"{reference.scheme}:{reference.location}@{source.revision}"
    values["artifacts"] = str(artifacts)
    values["repository"] = str(Path(spec.repository or artifacts / "repository").resolve())
    return {
        "spec.yaml": yaml.safe_dump(escaped(values), sort_keys=False, allow_unicode=True),
        "reproduce.sh": _SCRIPT,
    }
