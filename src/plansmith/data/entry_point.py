"""A function of the user's own that yields samples. Its code is imported in the worker only."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from plansmith.data.table import Row, Table
from plansmith.errors import SourceError, UsageError, first_line


def read_entry_point(name: str, folder: Path) -> Table:
    """The samples of `package.module:function`, each a mapping from columns to values.

    The first sample tells the columns, so that the function begins to work at once. The first reading of the rows goes
    on from there; every further one calls the function again.

    Args:
        name: the entry point.
        folder: stands first on the path while it is imported: that of the spec.

    Raises:
        UsageError: there is no such module or function.
        SourceError: it fails, yields nothing, or something that is no mapping.
    """
    with _on_path(folder):
        function = _function(name)
        begun = _samples(name, function)
        first = next(begun, None)
    if first is None:
        raise SourceError(f"{name} yields no samples", remedy='yield dicts such as {"text": …, "label": …}')

    readings = [chain([first], begun)]

    def rows(_: Sequence[str]) -> Iterator[Row]:
        with _on_path(folder):
            yield from readings.pop() if readings else _samples(name, function)

    return Table(name, tuple(first.values), rows)


def _function(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        raise UsageError(
            f"entry_point: there is no module {missing!r}" + ("" if own else f", which {module_name} imports"),
            remedy="put it beside the spec, or install it" if own else f"pip install {missing}",
        ) from error
    except Exception as error:
        raise _failed(name, error, "cannot be imported") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UsageError(
            f"entry_point: {module_name} has no function {attribute!r}",
            remedy=f"it has {', '.join(sorted(known)) or 'none'}",
        )
    return found


def _samples(name: str, function: Any) -> Iterator[Row]:
    for number, values in enumerate(_yielded(name, function)):
        if not isinstance(values, Mapping) or not values:
            raise SourceError(
                f"{name}, sample {number} is a {type(values).__name__}, not a mapping from columns to values",
                remedy='yield dicts such as {"text": …, "label": …}',
            )
        yield Row(values, f"{name}, sample {number}")


def _yielded(name: str, function: Any) -> Iterator[Any]:
    """What the function yields; what goes wrong in it is told as its own."""
    try:
        yield from function()
    except Exception as error:
        raise _failed(name, error, "fails") from error


def _failed(name: str, error: Exception, how: str) -> SourceError:
    """What a user's own code raised, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
    return SourceError(
        f"{name} {how}: {type(error).__name__}: {first_line(error)} ({place})", remedy="mend it, and run it by hand"
    )


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
