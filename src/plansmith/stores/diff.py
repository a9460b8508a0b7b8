"""Release diff: interface, accuracy, speed, size, provenance and requested Triton configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from plansmith.errors import RepositoryError
from plansmith.formatting import format_bytes
from plansmith.records.model import Record, Tensor
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest
from plansmith.records.validation import ValidationReport
from plansmith.report.provenance import groups_of
from plansmith.report.text import format_cosine, format_speedup, milliseconds
from plansmith.report.verdict import facts_of
from plansmith.stores.reader import read_file, read_stored_manifest
from plansmith.stores.store import Store
from plansmith.triton.repository.release import read_manifest

_LEFT_OUT = {"Made", "Requests", "Latency", "Inputs", "Outputs", "Compared on"}
"""Facts of the report that differ between any two releases, or stand in other sections."""

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b")


@dataclass(frozen=True)
class Side:
    """One of the two compared releases: its name, its manifest and its Triton configuration."""

    name: str
    manifest: Manifest
    config: str


class Difference(Record):
    """A difference between two releases: old and new value as text (None if absent), and as numbers where numeric."""

    what: str
    old: str | None
    new: str | None
    old_value: float | None = None
    new_value: float | None = None


class Differences(Record):
    """All differences, by section in fixed order; includes empty sections.

    `config`: lines of a unified diff of the configurations.
    """

    old: str
    new: str
    sections: dict[str, tuple[Difference, ...]]
    config: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the two releases are identical."""
        return not self.config and not any(self.sections.values())


def side_of_folder(folder: Path, name: str) -> Side:
    """Return a local release as one side of a comparison.

    Raises:
        RepositoryError: it is none, or damaged.
    """
    manifest = read_manifest(folder)
    try:
        return Side(name, manifest, (folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RepositoryError(
            f"{folder / CONFIG_FILE} cannot be read: {error}", remedy="see what else is damaged: plansmith verify"
        ) from error


def side_of_stored(store: Store, text: str) -> Side:
    """Return a stored version, named as MODEL[@VERSION or @ALIAS], as one side of a comparison.

    Raises:
        RepositoryError: there is none, or it is damaged.
    """
    catalogue, version = store.find(text)
    release = store.release(catalogue.model, version)
    config = read_file(store.objects, release, CONFIG_FILE).decode("utf-8", "replace")
    return Side(f"{catalogue.model}@{version.version}", read_stored_manifest(store.objects, release), config)


def differences(old: Side, new: Side) -> Differences:
    """Return the differences of a second release from a first one."""
    sections = {
        title: tuple(_compared(dict(facts(old.manifest)), dict(facts(new.manifest))))
        for title, facts in (
            ("interface", _interface),
            ("accuracy", _accuracy),
            ("speed", _speed),
            ("size", _size),
            ("parts", _parts),
            ("provenance", _provenance),
            ("spec", _spec),
        )
    }
    config = unified_diff(old.config.splitlines(), new.config.splitlines(), n=2, lineterm="")
    return Differences(old=old.name, new=new.name, sections=sections, config=tuple(config)[2:])


@dataclass(frozen=True)
class _Fact:
    """Fact: a text and, if it is numeric, its value."""

    text: str
    value: float | None = None


def _compared(old: Mapping[str, _Fact], new: Mapping[str, _Fact]) -> Iterator[Difference]:
    nothing = _Fact("")
    for label in dict.fromkeys((*old, *new)):
        before, after = old.get(label, nothing), new.get(label, nothing)
        if before.text != after.text:
            yield Difference(
                what=label,
                old=before.text or None,
                new=after.text or None,
                old_value=before.value,
                new_value=after.value,
            )


_Facts = Iterator[tuple[str, _Fact]]


def _interface(manifest: Manifest) -> _Facts:
    interface = manifest.package.interface
    yield from ((f"input {tensor.name}", _Fact(_tensor(tensor))) for tensor in interface.inputs)
    yield from ((f"output {tensor.name}", _Fact(_tensor(tensor))) for tensor in interface.outputs)
    batch = manifest.package.max_batch_size
    yield "largest batch", _Fact(str(batch), batch)
    for name, axis in manifest.onnx.axes.items():
        yield f"axis {name}", _Fact(f"{axis.min} to {axis.max}, usually {axis.opt}")


def _tensor(tensor: Tensor) -> str:
    return f"{tensor.dtype} [{', '.join(map(str, tensor.dims))}]"


def _accuracy(manifest: Manifest) -> _Facts:
    validation = manifest.validation
    yield "verdict", _Fact(validation.verdict)
    yield "judged on", _Fact(validation.data)
    for output, worst in validation.worst().items():
        yield f"{output}, largest error", _Fact(f"{worst['max_relative']:.2g}", worst["max_relative"])
        yield f"{output}, smallest cosine", _Fact(format_cosine(worst["min_cosine"]), worst["min_cosine"])
        allowed = validation.tolerances[output].max_relative
        yield f"{output}, error allowed", _Fact(f"{allowed:.2g}", allowed)
    yield from _held_out(validation)


def _held_out(validation: ValidationReport) -> _Facts:
    evaluation = validation.evaluation
    if evaluation is None:
        return
    yield "held-out samples", _Fact(f"{evaluation.samples} of {evaluation.data}", evaluation.samples)
    for metric in evaluation.metrics:
        yield metric.name, _Fact(f"{metric.candidate:.4f} (FP32 {metric.reference:.4f})", metric.candidate)
    for agreement in evaluation.agreements:
        yield f"{agreement.output}, mean cosine", _Fact(format_cosine(agreement.mean_cosine), agreement.mean_cosine)
        yield f"{agreement.output}, SQNR", _Fact(f"{agreement.sqnr_db:.1f} dB", agreement.sqnr_db)


def _speed(manifest: Manifest) -> _Facts:
    served = manifest.served
    if served is not None:
        median = 1000 * served.median_seconds
        where = f"{served.backend_runtime} on {served.device.upper()}, {served.backend} backend"
        yield "median of the served check", _Fact(f"{milliseconds(median)} ({where})", median)
    chosen = next((trial for trial in manifest.lowered.trials if trial.chosen), None) if manifest.lowered else None
    if chosen is not None and chosen.speed is not None:
        yield "beside FP32", _Fact(format_speedup(chosen.speed), chosen.speed.ratio)
    for speed in manifest.validation.speeds:
        label = f"plan for {speed.plan}, profile {speed.profile}"
        yield label, _Fact(f"{milliseconds(speed.median_ms)} ({speed.shapes}; {speed.setting})", speed.median_ms)


def _size(manifest: Manifest) -> _Facts:
    files = manifest.files
    own = (f"{MODEL_FOLDER}/", *(f"{member.folder}/" for member in manifest.package.members))
    model = sum(file.bytes for file in files if file.path.startswith(own))
    yield "model", _Fact(format_bytes(model), model)
    total = sum(file.bytes for file in files)
    yield "release", _Fact(format_bytes(total), total)


def _parts(manifest: Manifest) -> _Facts:
    """Return the members of an ensemble; their names show whether they are the same, and each has a size."""
    for member in manifest.package.members:
        size = sum(file.bytes for file in manifest.files if file.path.startswith(f"{member.folder}/"))
        yield member.part, _Fact(f"{member.model}, {member.backend} backend, {format_bytes(size)}", size)


def _provenance(manifest: Manifest) -> _Facts:
    for group in groups_of(facts_of(manifest).model_copy(update={"release_digest": None})):
        facts: dict[str, list[str]] = {}
        for fact in group.facts:
            if fact.term not in _LEFT_OUT and not fact.term.startswith("Axis "):
                facts.setdefault(fact.term, []).append(fact.text)
        for term, texts in facts.items():
            yield f"{group.title.lower()}: {term}", _Fact("; ".join(" ".join(text.split()) for text in texts))
    yield "plansmith", _Fact(manifest.plansmith)


def _spec(manifest: Manifest) -> _Facts:
    yield from _flat(manifest.spec, "")


def _flat(value: Mapping[str, Any], above: str) -> _Facts:
    """Yield the requested settings by dotted name; empty ones are omitted."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{above}{key}.")
        elif item not in (None, "", [], ()):
            yield f"{above}{key}", _Fact(", ".join(map(_word, item)) if isinstance(item, list) else _word(item))


def _word(value: Any) -> str:
    """Format a value as in a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shorten_digests(text: str | None) -> str:
    """Shorten the digests in one side of a difference to twelve characters; "none" if the release lacks the fact."""
    return _DIGEST.sub(r"\1…", text) if text is not None else "none"


def describe_change(section: str, line: Difference) -> str:
    """Return the factor between two sizes or latencies; for nearly equal sizes the bytes between them; else nothing.

    Args:
        section: the title of the section that the difference stands in.
        line: the difference.
    """
    if section not in {"speed", "size"} or not line.old_value or line.new_value is None:
        return ""
    factor = f"{line.new_value / line.old_value:.2g}"
    if section == "size" and factor == "1":
        more = line.new_value - line.old_value
        return f"{abs(more):,.0f} bytes {'more' if more > 0 else 'less'}"
    return f"{factor} times"
