"""Why a model is built again: how what it would be made from now differs from what its newest version was made from."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plansmith.records.fingerprint import Fingerprint, Reason
from plansmith.steps.provenance.tools import CODE_OF, STANDING_IN

_MOST_NAMED = 6
_COMMIT_LETTERS = 7
_LABEL = re.compile(r"\+[A-Za-z0-9.]+")

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 60, 60


def differences(then: Fingerprint, now: Fingerprint) -> Iterator[Reason]:
    """What differs; what is not known here now (an empty value) stands as it was.

    Another spec, source or target may go through steps, and need libraries, that the newest version was made without:
    no such tool changed.

    Args:
        then: what the newest version was made from.
        now: what it would be made from.
    """
    changed = list(_changed_wishes(then, now))
    yield from changed
    yield from _changed_tools(_tools_beside(then, now) if changed else then.tools, now.tools)
    yield from _changed_beside(then, now)
    absent = [place for place in now.destinations if place not in then.destinations]
    if absent:
        yield Reason(cause="destination", words=f"not yet in {_listed(absent)}")


def _changed_wishes(then: Fingerprint, now: Fingerprint) -> Iterator[Reason]:
    """What a person, or the hub, changed."""
    if then.spec != now.spec:
        yield Reason(cause="spec", words=f"spec: {_listed(list(_changed_values(then.spec, now.spec)))}")
    if now.source and then.source != now.source:
        yield Reason(cause="source", words="the files of the model changed")
    if now.revision and then.revision != now.revision:
        yield Reason(cause="source", words=f"{now.hub_id} {_moved(then.revision, now.revision)}")
    if now.data and then.data != now.data:
        yield Reason(cause="data", words=_changed_data(then, now))
    if then.target != now.target:
        yield Reason(cause="target", words="the description of the target changed")


def _changed_beside(then: Fingerprint, now: Fingerprint) -> Iterator[Reason]:
    """What changed of models beside the model, but for what the spec says of them: the spec is told as a whole."""
    common = set(_changed_tools(then.tools, now.tools))
    for name, one in now.beside.items():
        for reason in differences(then.beside.get(name, one), one):
            if reason.cause in {"source", "data"} or (reason.cause == "tools" and reason not in common):
                yield reason.model_copy(update={"words": f"{name}: {reason.words}"})


def _changed_values(then: Any, now: Any, keys: tuple[str, ...] = ()) -> Iterator[str]:
    """Every value that differs, by the keys that lead to it."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*then, *now)):
            if then.get(key, _Absent) != now.get(key, _Absent):
                yield from _changed_values(then.get(key, _Absent), now.get(key, _Absent), (*keys, key))
    else:
        yield f"{'.'.join(keys)} {_describe(then)} -> {_describe(now)}"


class _Absent:
    """Stands for a value that is not there."""


def _describe(value: Any) -> str:
    if value is _Absent or value is None or value == "":
        return "nothing"
    return value if isinstance(value, str) and len(value) <= _SHORT.maxstring else _SHORT.repr(value)


def _moved(then: str, now: str) -> str:
    """Two commits of a hub, each after the branch that it is of where that is not the usual one; or two versions."""
    kind = "version " if now.isdigit() else ""
    before, after = (f"{kind}{commit.rpartition('@')[2][:_COMMIT_LETTERS]}" for commit in (then, now))
    return f"is now at {after}{f' instead of {before}' if then else ''}"


def _changed_data(then: Fingerprint, now: Fingerprint) -> str:
    """Of a data set of the hub its commits tell; a digest says nothing to anybody."""
    given = now.spec.get("data") or {}
    if given.get("dataset"):
        return f"the data set {given['dataset']} {_moved(then.data, now.data)}"
    return "the code of the data's entry point changed" if given.get("entry_point") else "the data changed"


def _changed_tools(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Reason]:
    """Distributions by their versions, and our own code by its steps."""
    changed = [name for name, found in now.items() if _is_another(then.get(name), found)]
    versions = [f"{name} {then.get(name) or 'none'} -> {now[name]}" for name in changed if not name.startswith(CODE_OF)]
    steps = [name.removeprefix(CODE_OF) for name in changed if name.startswith(CODE_OF)]
    if versions:
        yield Reason(cause="tools", words=_listed(versions))
    if steps:
        yield Reason(cause="tools", words=f"plansmith's own code changed ({', '.join(steps)})")


def _tools_beside(then: Fingerprint, now: Fingerprint) -> dict[str, str]:
    """The tools of then where more than tools changed: what it did without is no change (empty).

    Of another engine, or another kind of source, steps with the same names are other code.
    """
    is_other_way = _way(then.spec) != _way(now.spec)
    return {
        name: "" if is_other_way and name.startswith(CODE_OF) else then.tools.get(name, "")
        for name in (*then.tools, *now.tools)
    }


def _way(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("engine")), str(spec.get("source")).partition(":")[0]


def _is_another(then: str | None, now: str) -> bool:
    """Whether a tool changed in a way that may change the result.

    Whoever plans may be another machine than the one that compiled. What is not here tells nothing. What the compile
    did without (empty) had no part in its result. One release of a library is there in several builds, told apart by a
    local label (PEP 440: 2.9.1+cpu, 2.9.1+cu130). And a stand-in takes nothing back that a real server has checked.

    Args:
        then: its version at the compile; None where the compile had no use for it.
        now: its version here.
    """
    if not now or then == "" or (now.endswith(STANDING_IN) and then and not then.endswith(STANDING_IN)):
        return False
    return then is None or _LABEL.sub("", then) != _LABEL.sub("", now)


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _MOST_NAMED
    return ", ".join(words[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
