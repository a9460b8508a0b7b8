"""Test fakes: TensorRT's classes without a GPU, as strict as the real ones about their use.

    fakes = Fakes(tensorrt, {"Builder": {"build_serialized_network": b"a plan"}})
    with fakes.installed():
        …                                       # tensorrt.Builder(logger) and what it makes are fakes
    assert fakes.named("set_flag") …

A fake is made from the real class of the bindings, which need none of TensorRT's libraries to be looked at. It has
the attributes of that class and no others, writes only what can be written, and takes a call only where a signature
in the class's documentation does: number, names and types of arguments. It knows no results: a call gives what the
test says, or else something empty of the type that the signature promises. Nothing that a fake answers says anything
about TensorRT.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

NEEDING_A_GPU = ("Builder", "Runtime", "OnnxParser", "Refitter", "OnnxParserRefitter")

_SIGNATURE = r"^(?:\d+\. )?{name}\((?P<parameters>.*)\) -> (?P<result>.*)$"
_UNNAMED = re.compile(r"arg\d+")  # so written where the real method takes no keyword
_REQUIRED = object()
_PLAIN: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: hasattr(value, "__index__"),
    "typing.SupportsInt": lambda value: hasattr(value, "__int__") and not isinstance(value, str | float),
    "float": lambda value: isinstance(value, int | float),
    "typing.SupportsFloat": lambda value: hasattr(value, "__float__") and not isinstance(value, str),
    "object": lambda _: True,
    "tuple": lambda value: isinstance(value, tuple),
    "list": lambda value: isinstance(value, list),
}
_VALUES = {"Dims", "Permutation"}
_BUFFERS = {"buffer", "typing_extensions.Buffer"}
_EMPTY: dict[str, Any] = {"bool": True, "int": 0, "float": 0.0, "str": ""}


class Call(NamedTuple):
    """A recorded call or write: the class, the method or attribute, and the arguments by parameter name."""

    owner: str
    name: str
    arguments: dict[str, Any]


class _Signature(NamedTuple):
    parameters: dict[str, tuple[str, object]]
    result: str

    def __str__(self) -> str:
        return f"({', '.join(f'{name}: {kind}' for name, (kind, _) in self.parameters.items())})"


class Fakes:
    """Fakes for the classes of one TensorRT module; `calls`: all recorded calls, in order.

    Args:
        module: the real bindings.
        answers: by class and then by method or attribute, what it gives: a value, or a function that is called with
            the arguments. Keys of Python's own are `__len__`, `__getitem__` and, for memory of the host, `content`.
    """

    def __init__(self, module: ModuleType, answers: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.module = module
        self.answers = answers or {}
        self.calls: list[Call] = []
        self._constructed = {name: getattr(module, name) for name in NEEDING_A_GPU}

    def make(self, kind: str, /, **answers: Any) -> Any:
        """Return a fake of a class (by name) that was not constructed.

        `answers` takes precedence over those of the class.
        """
        fake_class = type(kind, (_Buffer if kind == "IHostMemory" else _Fake,), {})
        return fake_class(self, self._real(kind), {**self.answers.get(kind, {}), **answers})

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of all calls with this name, in order."""
        return [call.arguments for call in self.calls if call.name == name]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Patch the module to construct fakes for the classes that need a GPU."""
        with ExitStack() as patches:
            for name in NEEDING_A_GPU:
                patches.enter_context(mock.patch.object(self.module, name, self._constructor(name)))
            yield

    def _constructor(self, name: str) -> Callable[..., Any]:
        real = self._constructed[name]

        def construct(*arguments: Any, **named: Any) -> Any:
            signatures = signatures_of(real.__init__.__doc__, "__init__")
            self.record(real, "__init__", signatures, arguments, named)
            return self.make(name)

        return construct

    def record(
        self, owner: type, name: str, signatures: list[_Signature], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> _Signature:
        """Record a call and return the matching signature.

        Raises:
            TypeError: it fits none.
        """
        for signature in signatures:
            if (bound := self._bound(signature, arguments, named)) is not None:
                self.calls.append(Call(owner.__name__, name, bound))
                return signature
        expected = " or ".join(map(str, signatures)) or "without a signature in its documentation"
        raise TypeError(f"{owner.__name__}.{name} is called with {arguments} {named}, and is {expected}")

    def _bound(self, signature: _Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
        names = list(signature.parameters)
        bound = dict(zip(names, arguments, strict=False)) | named
        if len(bound) != len(arguments) + len(named) or not bound.keys() <= signature.parameters.keys():
            return None
        if any(_UNNAMED.fullmatch(name) for name in named):
            return None
        for name, (kind, default) in signature.parameters.items():
            if name in bound and not self._fits(kind, bound[name]):
                return None
            if name not in bound and default is _REQUIRED:
                return None
        return bound

    def _fits(self, kind: str, value: Any) -> bool:
        """Whether pybind11 would accept a value for a type, according to its documentation.

        Raises:
            NotImplementedError: the type is one that this does not know.
        """
        if sequence := re.fullmatch(r"(?:List|list|collections\.abc\.Sequence)\[(.*)\]", kind):
            return isinstance(value, list | tuple) and all(self._fits(sequence[1], item) for item in value)
        if kind in _PLAIN:
            return _PLAIN[kind](value)
        if kind in _BUFFERS:
            return isinstance(value, bytes | bytearray | memoryview | _Buffer)
        if (real := self.class_of(kind)) is None:
            raise NotImplementedError(f"no fake knows the type {kind}")
        if real.__name__ in _VALUES and isinstance(value, list | tuple):
            return all(hasattr(size, "__index__") for size in value)
        by_value = real.__name__ in _VALUES or hasattr(real, "__members__")
        return isinstance(value, real) or (value is None and not by_value)

    def class_of(self, kind: str) -> type | None:
        """Return the class of a type named in the documentation, by its Python path or, for some, its C++ one."""
        path = re.sub(r"^(tensorrt(_bindings)?\.)+|^(nvinfer1|nvonnxparser)::(v_\d_\d::)?", "", kind)
        first, *others = path.split(".")
        member = self._real(first)
        for part in others:
            member = getattr(member, part, None)
        return member if inspect.isclass(member) else None

    def _real(self, name: str) -> Any:
        return self._constructed.get(name) or getattr(self.module, name, None)

    def empty(self, kind: str) -> Any:
        """Return a default value of a type, for a result that no test checks; a Boolean one is success."""
        real = self.class_of(kind)
        if real is None:
            return [] if kind.startswith(("List[", "list[")) else _EMPTY.get(kind)
        members = getattr(real, "__members__", None)
        return next(iter(members.values())) if members else self.make(real.__name__)


class _Fake:
    """A fake object; `Fakes` records how it is used."""

    def __init__(self, fakes: Fakes, real: type, answers: dict[str, Any]) -> None:
        for name, value in {"_fakes": fakes, "_real": real, "_answers": answers, "_written": {}}.items():
            object.__setattr__(self, name, value)

    # As for a mock with a specification: `isinstance` says yes.
    __class__ = property(lambda self: self._real)

    def _attribute(self, name: str) -> Any:
        try:
            return inspect.getattr_static(self._real, name)
        except AttributeError:
            raise AttributeError(f"{self._real.__name__} has no attribute {name}") from None

    def __getattr__(self, name: str) -> Any:
        attribute = self._attribute(name)
        if isinstance(attribute, property):
            if name in self._written:
                return self._written[name]
            kind = (attribute.fget.__doc__ or "").strip().rpartition("-> ")[2]
            return self._answers[name] if name in self._answers else self._fakes.empty(kind)
        signatures = signatures_of(getattr(self._real, name).__doc__, name)

        def call(*arguments: Any, **named: Any) -> Any:
            fitting = self._fakes.record(self._real, name, signatures, arguments, named)
            if name not in self._answers:
                return self._fakes.empty(fitting.result)
            answer = self._answers[name]
            return answer(*arguments, **named) if inspect.isroutine(answer) else answer

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = self._attribute(name)
        if not isinstance(attribute, property) or attribute.fset is None:
            raise AttributeError(f"{name} of {self._real.__name__} cannot be written")
        kind = re.search(r", \w+: (.*)\) -> \w+", attribute.fset.__doc__ or "")
        if kind is None or not self._fakes._fits(kind[1], value):  # noqa: SLF001 - one thing in two classes
            raise TypeError(f"{name} of {self._real.__name__} takes {kind and kind[1]}, and not {value!r}")
        self._fakes.calls.append(Call(self._real.__name__, name, {"value": value}))
        self._written[name] = value

    def __len__(self) -> int:
        self._attribute("__len__")
        return int(self._answers.get("__len__", 0))

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        self._attribute("__getitem__")
        if isinstance(index, int) and index >= len(self):
            raise IndexError(index)
        return self._answers["__getitem__"](index)

    def __enter__(self) -> Any:
        self._attribute("__enter__")
        return self

    def __exit__(self, *_: object) -> None:
        self._attribute("__exit__")


class _Buffer(_Fake, bytes):
    """A host memory buffer that other code reads."""

    def __new__(cls, _fakes: Fakes, _real: type, answers: dict[str, Any]) -> Any:
        return bytes.__new__(cls, answers.get("content", b""))


def signatures_of(documentation: str | None, name: str) -> list[_Signature]:
    """Return the signatures of a method from its pybind11 docstring, without `self`."""
    lines = re.finditer(_SIGNATURE.format(name=re.escape(name)), documentation or "", re.MULTILINE)
    signatures = []
    for line in lines:
        if not line["parameters"].startswith("*args"):
            parameters = dict(map(_parameter, _parts(line["parameters"])))
            parameters.pop("self", None)
            signatures.append(_Signature(parameters, line["result"].strip()))
    return signatures


def _parameter(text: str) -> tuple[str, tuple[str, object]]:
    name, _, rest = text.partition(": ")
    kind, separator, default = rest.partition(" = ")
    return name.strip(), (kind.strip(), default if separator else _REQUIRED)


def _parts(parameters: str) -> Iterator[str]:
    """Split the parameters at the commas outside of brackets."""
    depth, begin = 0, 0
    for place, sign in enumerate(parameters):
        depth += (sign in "[(<") - (sign in "])>")
        if sign == "," and depth == 0:
            yield parameters[begin:place]
            begin = place + 1
    if parameters[begin:].strip():
        yield parameters[begin:]
