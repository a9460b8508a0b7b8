"""A pytest plugin: the run fails where a function that uses TensorRT was not called, as nothing held it to anything."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

from plansmith.compilers.trt import api

_SOURCES = {str(path) for path in Path(api.__path__[0]).glob("*.py")}
_called: set[tuple[str, str]] = set()


def _note(frame: FrameType, event: str, _: object) -> None:
    if event == "call" and frame.f_code.co_filename in _SOURCES:
        _called.add((frame.f_code.co_filename, frame.f_code.co_qualname))


def _functions(code: CodeType) -> Iterator[tuple[str, str]]:
    for inner in code.co_consts:
        if inspect.iscode(inner):
            if inner.co_flags & inspect.CO_NEWLOCALS and not inner.co_name.startswith("<"):
                yield inner.co_filename, inner.co_qualname
            yield from _functions(inner)


def pytest_sessionstart() -> None:
    threading.setprofile(_note)
    sys.setprofile(_note)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    sys.setprofile(None)
    functions = {
        function for path in _SOURCES for function in _functions(compile(Path(path).read_text(), path, "exec"))
    }
    assert functions
    if missing := functions - _called:
        print("\nnever called:", *sorted(missing), sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
