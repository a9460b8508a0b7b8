"""What two releases differ in: interface, accuracy, speed, size, where they come from, what was asked for of Triton."""

from __future__ import annotations

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
from plansmith.report import facts_of
from plansmith.report.provenance import groups_of
from plansmith.report.text.plan import milliseconds
from plansmith.report.text.precision import format_cosine, format_speedup
from plansmith.stores.reader import read_file, read_stored_manifest
from plansmith.stores.store import Store
from plansmith.triton.repository.release import read_manifest

_LEFT_OUT = {"Made", "Requests", "Latency", "Inputs", "Outputs", "Compared on"}
"""Facts of the report that differ between any two releases, or stand in other sections."""


@dataclass(frozen=True)
class Side:
    """One of the two releases: what it is called, its manifest, and the configuration that Triton is given."""

    name: str
    manifest: Manifest
    config: str


class Difference(Record):
    """A fact that is not the same in both: in words, None where one has none; as a number where it is one."""

    what: str
    old: str | None
    new: str | None
    old_value: float | None = None
    new_value: float | None = None


class Differences(Record):
    """All that differs, by what it is about, in the order of the sections; those with nothing in them are there, too.

    `config`: lines of a unified diff of the configurations.
    """

    old: str
    new: str
    sections: dict[str, tuple[Difference, ...]]
    config: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the two are the same in everything."""
        return not self.config and not any(self.sections.values())


def side_of_folder(folder: Path, name: str) -> Side:
    """A release on this machine.

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
    """A version of a store, named as MODEL[@VERSION or @ALIAS].

    Raises:
        RepositoryError: there is none, or it is damaged.
    """
    catalogue, version = store.find(text)
    release = store.release(catalogue.model, version)
    config = read_file(store.objects, release, CONFIG_FILE).decode("utf-8", "replace")
    return Side(f"{catalogue.model}@{version.version}", read_stored_manifest(store.objects, release), config)


def differences(old: Side, new: Side) -> Differences:
    """What a second release has otherwise than a first one."""
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
    """What is said of something, and the number that it is, if so."""

    words: str
    value: float | None = None


def _compared(old: Mapping[str, _Fact], new: Mapping[str, _Fact]) -> Iterator[Difference]:
    nothing = _Fact("")
    for what in dict.fromkeys((*old, *new)):
        before, after = old.get(what, nothing), new.get(what, nothing)
        if before != after:
            yield Difference(
                what=what,
                old=before.words or None,
                new=after.words or None,
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
    for one in evaluation.agreements:
        yield f"{one.output}, mean cosine", _Fact(format_cosine(one.mean_cosine), one.mean_cosine)
        yield f"{one.output}, SQNR", _Fact(f"{one.sqnr_db:.1f} dB", one.sqnr_db)


def _speed(manifest: Manifest) -> _Facts:
    served = manifest.served
    if served is not None:
        median = 1000 * served.median_seconds
        where = f"{served.backend_runtime} on {served.device.upper()}, {served.backend} backend"
        yield "median in Triton", _Fact(f"{milliseconds(median)} ({where})", median)
    chosen = next((trial for trial in manifest.lowered.trials if trial.chosen), None) if manifest.lowered else None
    if chosen is not None and chosen.speed is not None:
        yield "beside FP32", _Fact(format_speedup(chosen.speed), chosen.speed.ratio)
    for speed in manifest.validation.speeds:
        what = f"plan for {speed.plan}, profile {speed.profile}"
        yield what, _Fact(f"{milliseconds(speed.median_ms)} ({speed.shapes}; {speed.setting})", speed.median_ms)


def _size(manifest: Manifest) -> _Facts:
    files = manifest.files
    own = (f"{MODEL_FOLDER}/", *(f"{member.folder}/" for member in manifest.package.members))
    model = sum(file.bytes for file in files if file.path.startswith(own))
    yield "model", _Fact(format_bytes(model), model)
    total = sum(file.bytes for file in files)
    yield "release", _Fact(format_bytes(total), total)


def _parts(manifest: Manifest) -> _Facts:
    """Of an ensemble, whose parts tell by their names whether they are the same, and how large each is."""
    for member in manifest.package.members:
        held = sum(file.bytes for file in manifest.files if file.path.startswith(f"{member.folder}/"))
        yield member.part, _Fact(f"{member.model}, {member.backend} backend, {format_bytes(held)}", held)


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
    """What was asked for, by dotted names; what was left empty says nothing."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{above}{key}.")
        elif item not in (None, "", [], ()):
            yield f"{above}{key}", _Fact(", ".join(map(_word, item)) if isinstance(item, list) else _word(item))


def _word(value: Any) -> str:
    """A value as it stands in a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)
