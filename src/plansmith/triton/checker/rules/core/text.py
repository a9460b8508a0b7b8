"""Configuration text rules: whether Triton can parse a configuration at all; `config.*` of its text."""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, completes
from plansmith.triton.checker.reader import as_python_reads, read_bytes
from plansmith.triton.config.model_config import parse_config

if TYPE_CHECKING:
    from google.protobuf.text_format import ParseError

_READ = "core: src/filesystem/api.cc, ReadTextProto; Triton 2.51 was seen to do so"

UNREADABLE = Rule("config.unreadable", "error", "the configuration is a file that can be read", _READ)
NOT_A_FILE = Rule(
    "config.not-a-file",
    "error",
    "the configuration is a file: reading a folder ends the server, whatever else that serves",
    "core: src/filesystem/implementations/local.h, ReadTextFile; Triton 2.51 was seen to do so",
)
SYNTAX = Rule("config.syntax", "error", "the configuration is protobuf's text format", _READ)
UNKNOWN_FIELD = Rule("config.unknown-field", "error", "the configuration has no field that Triton does not know", _READ)
UNKNOWN_VALUE = Rule("config.unknown-value", "error", "a named value is one of those that its field has", _READ)
ENCODING = Rule(
    "config.encoding", "error", "the configuration begins with no byte order mark and has no NUL character", _READ
)
NOT_UTF8 = Rule(
    "config.not-utf-8",
    "warning",
    "the configuration is UTF-8: Triton reads other bytes, but clients that ask for the configuration fail",
    "protobuf: strings are UTF-8 (protobuf.dev/programming-guides/proto3); Triton 2.51 loads such a model",
)
AUTO_COMPLETE = Rule(
    "config.required",
    "error",
    "with --disable-auto-complete-config, every model has a configuration",
    "core: src/model_repository_manager/model_repository_manager.cc, InitializeModelInfo",
)
RULES: tuple[Rule, ...] = (
    UNREADABLE,
    NOT_A_FILE,
    SYNTAX,
    UNKNOWN_FIELD,
    UNKNOWN_VALUE,
    ENCODING,
    NOT_UTF8,
    AUTO_COMPLETE,
)

_MOST_NAMED = 16
_NO_FIELD = re.compile(r'Message type "inference\.(?P<message>[\w.]+)" has no field named "(?P<name>[^"]+)"')
_NO_VALUE = re.compile(r'Enum type "inference\.(?P<enum>[\w.]+)" has no value named (?P<name>\S+?)\.?$')
_PLACE = re.compile(r"^\d+:\d+ : (?:'.*?': )?", re.DOTALL)


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield syntax errors that keep Triton from parsing a configuration."""
    file = model.path / model.config_file
    if file.exists() and not file.is_file():
        yield model.faulted(
            NOT_A_FILE, "it is a folder, or so, which ends the server", remedy="put a file there, or take it away"
        )
        return
    try:
        content = read_bytes(file)
    except FileNotFoundError:
        if not file.is_symlink() and not completes(surroundings):
            yield model.faulted(
                AUTO_COMPLETE,
                "there is no configuration, and the server is told not to make one",
                remedy="write one, or start the server without --disable-auto-complete-config",
            )
        return
    except OSError as error:
        yield model.faulted(
            UNREADABLE, f"it cannot be read: {error.strerror}", remedy=f"chmod a+r {model.typed(model.config_file)}"
        )
        return
    problems = list(_encoding(model, content))
    yield from problems
    if model.config is None and not any(problem.rule == ENCODING.id for problem in problems):
        yield from _syntax(model)


def _encoding(model: ModelFolder, content: bytes) -> Iterator[Finding]:
    if content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield ENCODING.broken(
            "it begins with a byte order mark, which Triton takes for text",
            model=model.name,
            place=model.place(),
            line=1,
            remedy="save it as UTF-8 without a byte order mark",
        )
    elif b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        yield ENCODING.broken(
            "it has a NUL character",
            model=model.name,
            place=model.place(),
            line=line,
            remedy="save it as UTF-8, without that character",
        )
    else:
        try:
            content.decode()
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            yield NOT_UTF8.broken(
                f"byte {content[error.start]:#x} is no UTF-8",
                model=model.name,
                place=model.place(),
                line=line,
                remedy="save it as UTF-8",
            )


def _syntax(model: ModelFolder) -> Iterator[Finding]:
    from google.protobuf.text_format import ParseError

    try:
        parse_config(as_python_reads(model.text))
    except ParseError as error:
        yield from _syntax_findings(model, error)
    except ValueError as error:
        yield model.faulted(SYNTAX, str(error), remedy="correct the value")


def _syntax_findings(model: ModelFolder, error: ParseError) -> Iterator[Finding]:
    text = _PLACE.sub("", str(error))
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    rule, message, remedy = SYNTAX, text, "correct the line; fields are written `name: value` or `name { … }`"
    if "codec can't decode" in text:
        rule, remedy = NOT_UTF8, "write text, without escapes of single bytes"
    field, value = _NO_FIELD.search(text), _NO_VALUE.search(text)
    if field is not None:
        rule, message = UNKNOWN_FIELD, f"{_in_words(field['message'])} has no field {field['name']}"
        remedy = _nearest(field["name"], _fields(field["message"]), "take it out, or correct it")
    elif value is not None:
        rule, message = UNKNOWN_VALUE, f"{value['name']} is no {_in_words(value['enum'])}"
        remedy = _nearest(value["name"], _values(value["enum"]), "correct it")
    elif "specified along with field" in text or "multiple" in text:
        remedy = "keep one of them"
    yield rule.broken(f"{message} (column {column})", model=model.name, place=model.place(), line=line, remedy=remedy)


def _nearest(name: str, names: Sequence[str], otherwise: str) -> str:
    suffixed = [candidate for candidate in names if candidate.endswith(f"_{name.upper()}")]
    near = suffixed or difflib.get_close_matches(name, names, n=2)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"{otherwise}; it may be {', '.join(names)}" if 0 < len(names) <= _MOST_NAMED else otherwise


def _fields(message: str) -> list[str]:
    """The field names of a protobuf message; none for a message that is no part of a model configuration."""
    from plansmith.triton.messages import model_config_pb2 as pb

    try:
        return [field.name for field in pb.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{message}").fields]
    except KeyError:
        return []


def _values(enum: str) -> list[str]:
    from plansmith.triton.messages import model_config_pb2 as pb

    try:
        return [value.name for value in pb.DESCRIPTOR.pool.FindEnumTypeByName(f"inference.{enum}").values]
    except KeyError:
        return []


def _in_words(name: str) -> str:
    """The readable name of a message or enum, derived from its type name."""
    return "the configuration" if name == "ModelConfig" else name.removesuffix("Entry")
