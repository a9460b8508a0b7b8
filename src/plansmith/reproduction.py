"""How to make a release again: the spec with nothing left open, and a script that compiles it."""

from __future__ import annotations

import shlex
from pathlib import Path

from plansmith.config import ModelSpec, escaped
from plansmith.sources.reference import SourceReference
from plansmith.types import DataSet, SourceModel

_SCRIPT = """\
#!/bin/sh
# Does the same compile again from the spec beside this file, and publishes the result as a new version.
# Needs plansmith on PATH.
{own_code}cd "$(dirname "$0")" && exec plansmith compile spec.yaml --force "$@"
"""

_OWN_CODE = """\
# {entry_point}, which yields the samples, was found here; the release holds no copy of it.
export PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}"
"""


def reproduction(
    spec: ModelSpec, reference: SourceReference, source: SourceModel, *, relative_to: Path, data: DataSet | None
) -> dict[str, str]:
    """spec.yaml, with every default written out, paths in full, source and data set at their commits; reproduce.sh.

    Args:
        spec: what was compiled.
        reference: the source as typed.
        source: what was found there.
        relative_to: the folder that paths in the spec start from, and where a function that yields samples may lie.
        data: the samples; None where none were taken.
    """
    import yaml

    artifacts = Path(spec.artifacts).absolute()
    values = spec.model_dump(mode="json")
    if reference.full_path is not None:
        values["source"] = f"{reference.scheme}:{reference.full_path}"
    elif source.revision is not None:
        values["source"] = f"{reference.scheme}:{reference.location}@{source.revision}"
    values["artifacts"] = str(artifacts)
    values["repository"] = str(Path(spec.repository or artifacts / "repository").resolve())
    # Who makes a release again wants it, and not the servers and stores of then changed.
    values["load_into"] = values["publish"] = []
    values["shared_cache"] = None
    own_code = ""
    if spec.data is not None:
        values["data"]["path"] = _in_full(spec.data.path, relative_to)
        if spec.data.dataset and data is not None and data.revision:
            values["data"]["dataset"] = f"{spec.data.dataset.partition('@')[0]}@{data.revision}"
        if spec.data.entry_point:
            folder = shlex.quote(str(relative_to.resolve()))
            own_code = _OWN_CODE.format(entry_point=spec.data.entry_point, folder=folder)
    values["triton"] = spec.triton.found_from(relative_to).model_dump(mode="json")
    values["lowering"]["autocast"] = _in_full(spec.lowering.autocast, relative_to)
    return {
        "spec.yaml": yaml.safe_dump(escaped(values), sort_keys=False, allow_unicode=True),
        "reproduce.sh": _SCRIPT.format(own_code=own_code),
    }


def _in_full(path: str, relative_to: Path) -> str:
    """A path from the root on, links kept: a file goes by the suffix that it is named with; "" stays so."""
    return str((relative_to / path).absolute()) if path else ""
