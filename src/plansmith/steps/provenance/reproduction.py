"""How to make a release again: the spec with nothing left open, and a script that compiles it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from plansmith.config.data import DataSpec
from plansmith.config.source_reference import SourceReference, parse_reference
from plansmith.config.spec import ModelSpec, escaped
from plansmith.records.model import DataSet, SourceModel
from plansmith.records.release import ReleasedModel
from plansmith.steps.artifacts import companion_specs

_SCRIPT = """\
#!/bin/sh
# Does the same compile again from the spec beside this file, and publishes the result as a new version.
# Needs plansmith on PATH.
{own_code}cd "$(dirname "$0")" && exec plansmith compile spec.yaml --force "$@"
"""

_OWN_CODE = """\
# {entry_point}, which yields samples, was found here; the release holds no copy of it.
export PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}"
"""


def reproduction(
    spec: ModelSpec,
    reference: SourceReference,
    source: SourceModel,
    *,
    relative_to: Path,
    data: DataSet | None,
    beside: Mapping[str, ReleasedModel] | None = None,
) -> dict[str, str]:
    """spec.yaml, with every default written out, paths in full, source and data set at their commits; reproduce.sh.

    Args:
        spec: what was compiled.
        reference: the source as typed.
        source: what was found there.
        relative_to: the folder that paths in the spec start from, and where a function that yields samples may lie.
        data: the samples; None where none were taken.
        beside: by name, the models beside the spec's own.
    """
    import yaml

    artifacts = Path(spec.artifacts).absolute()
    values = spec.model_dump(mode="json")
    values["source"] = _pinned(reference, source) or spec.source
    for name, one in companion_specs(spec).items():
        made, written = (beside or {})[name], values["pipeline"]["models"][name]
        written["source"] = _pinned(parse_reference(one.source, relative_to=relative_to), made.source) or one.source
        written["lowering"]["autocast"] = _in_full(one.lowering.autocast, relative_to)
        if one.data is not None:
            written["data"] |= _data(one.data, relative_to, made.data)
    values["artifacts"] = str(artifacts)
    values["repository"] = str(Path(spec.repository or artifacts / "repository").resolve())
    # Who makes a release again wants it, and not the servers and stores of then changed.
    values["load_into"] = values["publish"] = []
    values["shared_cache"] = None
    if spec.data is not None:
        values["data"] |= _data(spec.data, relative_to, data)
    given = [one.data.entry_point for one in (spec, *companion_specs(spec).values()) if one.data is not None]
    functions = ", ".join(filter(None, dict.fromkeys(given)))
    folder = shlex.quote(str(relative_to.resolve()))
    own_code = _OWN_CODE.format(entry_point=functions, folder=folder) if functions else ""
    values["triton"] = spec.triton.with_absolute_paths(relative_to).model_dump(mode="json")
    if spec.pipeline is not None:
        values["pipeline"]["script"] = _in_full(spec.pipeline.script, relative_to)
    values["lowering"]["autocast"] = _in_full(spec.lowering.autocast, relative_to)
    return {
        "spec.yaml": yaml.safe_dump(escaped(values), sort_keys=False, allow_unicode=True),
        "reproduce.sh": _SCRIPT.format(own_code=own_code),
    }


def _pinned(reference: SourceReference, source: SourceModel) -> str:
    """The source as it stays, at its commit or with its path in full; "" where it is named for good."""
    if source.registered:
        return source.pinned_address
    if reference.full_path is not None:
        return f"{reference.scheme}:{reference.full_path}"
    return f"{reference.scheme}:{reference.location}@{source.revision}" if source.revision is not None else ""


def _data(spec: DataSpec, relative_to: Path, data: DataSet | None) -> dict[str, str]:
    """Where data are found again: the path in full, a data set at its commit."""
    found = {"path": _in_full(spec.path, relative_to)}
    if spec.dataset and data is not None and data.revision:
        found["dataset"] = f"{spec.dataset.partition('@')[0]}@{data.revision}"
    return found


def _in_full(path: str, relative_to: Path) -> str:
    """A path from the root on, links kept: a file goes by the suffix that it is named with; "" stays so."""
    return str((relative_to / path).absolute()) if path else ""
