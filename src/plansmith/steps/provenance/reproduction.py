"""Reproduction of a release: the fully resolved spec, and a script that compiles it."""

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
    """Return spec.yaml, with all defaults, absolute paths, and source and data set at their commits; and reproduce.sh.

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
    for name, companion in companion_specs(spec).items():
        model, written = (beside or {})[name], values["pipeline"]["models"][name]
        written["source"] = (
            _pinned(parse_reference(companion.source, relative_to=relative_to), model.source) or companion.source
        )
        if companion.data is not None:
            written["data"] |= _data(companion.data, relative_to, model.data)
    values["artifacts"] = str(artifacts)
    values["repository"] = str(Path(spec.repository or artifacts / "repository").resolve())
    # Who makes a release again wants it, and not the servers and stores of then changed.
    values["load_into"] = values["publish"] = []
    values["shared_cache"] = None
    if spec.data is not None:
        values["data"] |= _data(spec.data, relative_to, data)
    entry_points = [
        companion.data.entry_point
        for companion in (spec, *companion_specs(spec).values())
        if companion.data is not None
    ]
    functions = ", ".join(filter(None, dict.fromkeys(entry_points)))
    folder = shlex.quote(str(relative_to.resolve()))
    own_code = _OWN_CODE.format(entry_point=functions, folder=folder) if functions else ""
    values["triton"] = spec.triton.with_absolute_paths(relative_to).model_dump(mode="json")
    if spec.pipeline is not None:
        values["pipeline"]["script"] = _in_full(spec.pipeline.script, relative_to)
    return {
        "spec.yaml": yaml.safe_dump(escaped(values), sort_keys=False, allow_unicode=True),
        "reproduce.sh": _SCRIPT.format(own_code=own_code),
    }


def _pinned(reference: SourceReference, source: SourceModel) -> str:
    """Return the pinned source: at its commit or with its absolute path; "" if it is already pinned."""
    if source.registered:
        return source.pinned_address
    if reference.full_path is not None:
        return f"{reference.scheme}:{reference.full_path}"
    return f"{reference.scheme}:{reference.location}@{source.revision}" if source.revision is not None else ""


def _data(spec: DataSpec, relative_to: Path, data: DataSet | None) -> dict[str, str]:
    """Return the location of data: the absolute path, or a data set at its commit."""
    places = {"path": _in_full(spec.path, relative_to)}
    if spec.dataset and data is not None and data.revision:
        places["dataset"] = f"{spec.dataset.partition('@')[0]}@{data.revision}"
    return places


def _in_full(path: str, relative_to: Path) -> str:
    """Return an absolute path with links kept: a file's type depends on its named suffix; "" stays ""."""
    return str((relative_to / path).absolute()) if path else ""
