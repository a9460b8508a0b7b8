"""What a power cut may leave of file operations that strace recorded: a model of a disk stricter than file systems are.

- A file's content lasts as far as the last fsync of that file. Each block of 512 bytes may be as it was then, or at any
  moment since; so may the size, and what is new in it is zeros.
- A name (create, rename, link, unlink, mkdir, rmdir) lasts once its directory was flushed; a rename, which is atomic,
  once either directory was. An fsync of a file says nothing of its name.
- Names that were not flushed are there or not in any combination, but that an operation needs the earlier ones on the
  same name, and rmdir those in the directory.

Modes and times are not modelled: they are the newest ones, and a new file's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

BLOCK_BYTES = 512

_CALLS = (
    "openat,open,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,"
    "fallocate,sendfile,copy_file_range,splice,fsync,fdatasync,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "unlink,unlinkat,mkdir,mkdirat,rmdir,clone,clone3,fork,vfork"
)
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_LINE = re.compile(r"(\w+)\((.*)\) += (-?\d+)")


@dataclass(eq=False)
class Node:
    """File, directory or symbolic link, whatever its names are."""

    kind: Literal["file", "folder", "link"]
    target: str = ""
    names: dict[str, Node] = field(default_factory=dict)
    parent: Node | None = None
    versions: list[tuple[int, bytes]] = field(default_factory=list)
    """Contents by the moment from which they were there."""
    flushes: list[int] = field(default_factory=list)

    def contents(self, moment: int) -> list[bytes]:
        """The contents that may be on the disk, the flushed one first and the newest last."""
        flushed = max((flush for flush in self.flushes if flush <= moment), default=0)
        before = [content for at, content in self.versions if at <= flushed]
        return [before[-1] if before else b"", *(content for at, content in self.versions if flushed < at <= moment)]


@dataclass(eq=False)
class Naming:
    """Change of names in directories, which happens as a whole or not at all."""

    text: str
    moment: int
    names: dict[tuple[Node, str], Node | None]
    needs: list[Naming]
    flushed: int | None = None

    def flush(self, moment: int) -> None:
        """Make it last, and what it needs."""
        if self.flushed is None:
            self.flushed = moment
            for needed in self.needs:
                needed.flush(moment)

    def is_pending(self, moment: int) -> bool:
        """Whether it was done, and a power cut may undo it."""
        return self.flushed is None or self.flushed > moment


@dataclass
class _Open:
    node: Node
    appends: bool
    offset: int = 0


@dataclass(frozen=True)
class _Call:
    thread: str
    name: str
    arguments: Sequence[str]
    strings: Sequence[bytes]
    result: int


class _Missing(Exception):
    """A path leads through a folder that is not there yet."""


class Disk:
    """The disk below one folder, which was empty, and what was done there, in order.

    Args:
        root: the folder.
        inputs: how the names of folders in it begin whose names last at once: what the operation reads.
    """

    def __init__(self, root: Path, inputs: str) -> None:
        self._inputs = inputs
        self.moment = 0
        self.marks: dict[str, int] = {}
        """The moments at which folders beside the root were made, by their names."""
        self._root = root
        self._top = Node("folder")
        self._log: list[Naming] = []
        self._tables: dict[str, dict[int, _Open]] = {}
        self._open: dict[int, _Open] = {}

    def replay(self, trace: Path) -> None:
        """Take in a trace of strace, of a process with its threads and forks."""
        waiting: list[_Call] = []  # calls of threads at the same time, of which each may need another
        for call in _calls(trace):
            waiting += [call] if call.result >= 0 else []
            for earlier in list(waiting):
                self._open = self._tables.setdefault(earlier.thread, {})
                with suppress(_Missing):
                    getattr(self, f"_{earlier.name}", self._other)(earlier)
                    waiting.remove(earlier)
        assert not waiting, waiting

    def write(self, place: Path, moment: int) -> None:
        """Write the files as a process sees them at a moment."""
        done = [naming for naming in self._log if naming.moment <= moment]
        self._materialize(place, done, lambda node: node.contents(moment)[-1])

    def write_cut(self, place: Path, moment: int, chance: Random) -> list[str]:
        """Write one state that a power cut after a moment may leave; what it lost, a line each."""
        done = [naming for naming in self._log if naming.moment <= moment]
        pending = [naming for naming in done if naming.is_pending(moment)]
        gone = _drawn(pending, chance)
        lost = [f"{naming.moment}: {naming.text}" for naming in pending if naming in gone]
        torn = chance.random() < 0.5
        fates: dict[Node, bytes] = {}

        def content(node: Node) -> bytes:
            contents = node.contents(moment)
            if not torn or len(contents) == 1:
                return contents[-1]
            if node not in fates:
                fates[node] = _torn(contents, chance)
                if fates[node] != contents[-1]:
                    lost.append(f"content of {len(contents[-1])} bytes, {contents[-1][:40]!r}: {fates[node][:40]!r}")
            return fates[node]

        self._materialize(place, [naming for naming in done if naming not in gone], content)
        return lost

    def _materialize(self, place: Path, done: list[Naming], content: Callable[[Node], bytes]) -> None:
        names: dict[tuple[Node, str], Node | None] = {}
        for naming in done:
            names |= naming.names
        written: dict[Node, Path] = {}

        def write(folder: Node, path: Path) -> None:
            path.mkdir(exist_ok=True)
            for (parent, name), node in names.items():
                if parent is not folder or node is None:
                    continue
                if node.kind == "folder":
                    write(node, path / name)
                elif node.kind == "link":
                    (path / name).symlink_to(node.target)
                elif node in written:
                    (path / name).hardlink_to(written[node])
                else:
                    written[node] = path / name
                    written[node].write_bytes(content(node))

        write(self._top, place)

    def _find(self, path: str, folder: str = "AT_FDCWD") -> tuple[Node, str] | None:
        """The directory that a path leads to, and the name in it; None outside of the root."""
        if not path.startswith("/"):
            opened = self._open.get(int(folder)) if folder != "AT_FDCWD" else None
            return self._walk(opened.node, path.split("/")) if opened is not None else None
        if path != str(self._root) and not path.startswith(f"{self._root}/"):
            return None
        return self._walk(self._top, path[len(str(self._root)) + 1 :].split("/"))

    def _walk(self, folder: Node, parts: list[str]) -> tuple[Node, str]:
        parts = [part for part in parts[::-1] if part]
        while len(parts) > 1 or parts == [".."]:
            part = parts.pop()
            if part == "..":
                assert folder.parent is not None
                folder = folder.parent
                continue
            found = _named((folder, part))
            if found.kind == "link":
                assert not found.target.startswith("/"), found.target
                parts += found.target.split("/")[::-1]
            else:
                folder = found
        return folder, parts[0] if parts else ""

    def _change_names(self, text: str, names: dict[tuple[Node, str], Node | None], *needs: Naming) -> None:
        self.moment += 1
        needed = [naming for naming in self._log if naming.names.keys() & names.keys()]
        naming = Naming(text, self.moment, names, [*needed, *needs])
        if all(self._is_input(folder, name) for folder, name in names):
            naming.flush(self.moment)
        self._log.append(naming)
        for (folder, name), node in names.items():
            folder.names.pop(name, None)
            if node is not None:
                folder.names[name], node.parent = node, folder

    def _is_input(self, folder: Node, name: str) -> bool:
        while folder.parent is not None and folder.parent is not self._top:
            folder = folder.parent
        top = (
            name if folder is self._top else next((key for key, node in self._top.names.items() if node is folder), "")
        )
        return top.startswith(self._inputs)

    def _add(self, call: _Call, place: tuple[Node, str] | None, node: Node) -> None:
        if place is not None:
            self._change_names(_text(call), {place: node})

    def _openat(self, call: _Call) -> None:
        path, flags = call.strings[0].decode(), call.arguments[2].split("|")
        place = self._find(path, call.arguments[0])
        self._open.pop(call.result, None)
        if place is None:
            return
        folder, name = place
        node = folder.names.get(name) if name and name != "." else folder
        while node is not None and node.kind == "link":
            folder, name = self._walk(folder, node.target.split("/"))
            node = folder.names.get(name)
        if "O_TMPFILE" in call.arguments[2]:
            node = Node("file")
        elif node is None:
            assert "O_CREAT" in flags, path
            node = Node("file")
            self._add(call, (folder, name), node)
        elif "O_TRUNC" in flags:
            self._set(node, b"")
        self._open[call.result] = _Open(node, "O_APPEND" in flags)

    def _clone(self, call: _Call) -> None:
        is_thread = any("CLONE_FILES" in argument for argument in call.arguments)
        self._tables[str(call.result)] = self._open if is_thread else dict(self._open)

    _clone3 = _fork = _vfork = _clone

    def _close(self, call: _Call) -> None:
        self._open.pop(int(call.arguments[0]), None)

    def _dup(self, call: _Call) -> None:
        if int(call.arguments[0]) in self._open:
            self._open[call.result] = self._open[int(call.arguments[0])]

    _dup2 = _dup3 = _dup

    def _fcntl(self, call: _Call) -> None:
        if call.arguments[1].startswith("F_DUPFD"):
            self._dup(call)

    def _lseek(self, call: _Call) -> None:
        if int(call.arguments[0]) in self._open:
            self._open[int(call.arguments[0])].offset = call.result

    def _write_data(self, call: _Call, data: bytes, offset: int | None = None) -> None:
        opened = self._open.get(int(call.arguments[0]))
        if opened is None:
            return
        old = opened.node.contents(self.moment)[-1]
        at = offset if offset is not None else len(old) if opened.appends else opened.offset
        self._set(opened.node, old[:at].ljust(at, b"\0") + data + old[at + len(data) :])
        if offset is None:
            opened.offset = at + len(data)

    def _write(self, call: _Call) -> None:
        self._write_data(call, call.strings[0][: call.result])

    def _pwrite64(self, call: _Call) -> None:
        self._write_data(call, call.strings[0][: call.result], int(call.arguments[3]))

    def _ftruncate(self, call: _Call) -> None:
        opened = self._open.get(int(call.arguments[0]))
        if opened is not None:
            size = int(call.arguments[1])
            self._set(opened.node, opened.node.contents(self.moment)[-1][:size].ljust(size, b"\0"))

    def _set(self, node: Node, content: bytes) -> None:
        self.moment += 1
        node.versions.append((self.moment, content))

    def _fsync(self, call: _Call) -> None:
        opened = self._open.get(int(call.arguments[0]))
        if opened is None:
            return
        self.moment += 1
        opened.node.flushes.append(self.moment)
        for naming in self._log:
            if any(folder is opened.node for folder, _ in naming.names):
                naming.flush(self.moment)

    _fdatasync = _fsync

    def _mkdir(self, call: _Call) -> None:
        path = call.strings[0].decode()
        if Path(path).parent == self._root.parent and Path(path) != self._root:
            self.marks[Path(path).name] = self.moment
        if Path(path) != self._root:
            self._add(call, self._find(path), Node("folder"))

    def _symlink(self, call: _Call) -> None:
        self._add(call, self._find(call.strings[1].decode()), Node("link", call.strings[0].decode()))

    def _rename(self, call: _Call) -> None:
        old, new = (self._find(path.decode()) for path in call.strings)
        if old is not None and new is not None:
            node = _named(old)
            if new[0].names.get(new[1]) is not node:
                self._change_names(_text(call), {old: None, new: node})

    def _link(self, call: _Call) -> None:
        old, new = (self._find(path.decode()) for path in call.strings)
        if new is not None:
            assert old is not None, "a file from elsewhere is linked"
            self._change_names(_text(call), {new: _named(old)})

    _renameat = _renameat2 = _rename
    _linkat = _link

    def _unlink(self, call: _Call) -> None:
        self._unlink_in(call, "AT_FDCWD")

    def _unlinkat(self, call: _Call) -> None:
        self._unlink_in(call, call.arguments[0])

    _rmdir = _unlink

    def _unlink_in(self, call: _Call, base: str) -> None:
        place = self._find(call.strings[0].decode(), base)
        if place is not None:
            node = _named(place)
            inside = [naming for naming in self._log if any(folder is node for folder, _ in naming.names)]
            self._change_names(_text(call), {place: None}, *inside)

    def _other(self, call: _Call) -> None:
        """A call that is not modelled: an error if it has to do with the folder."""
        descriptors = {int(argument) for argument in call.arguments[:3] if argument.isdecimal()}
        assert descriptors.isdisjoint(self._open), call
        assert not any(str(self._root).encode() in path for path in call.strings), call


def record(command: Sequence[str], trace: Path, cwd: Path) -> None:
    """Run a command under strace.

    Args:
        command: the program, and its arguments.
        trace: its calls are written there, and read by `Disk.replay`.
        cwd: where it runs, outside of the folder that is watched.
    """
    options = ["-f", "--seccomp-bpf", "-xx", "-s", str(1 << 24), "-e", f"trace={_CALLS}", "-e", "signal=none"]
    done = subprocess.run(
        ["strace", *options, "-o", trace, *command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _calls(trace: Path) -> Iterator[_Call]:
    """The calls of a trace; those that other threads interrupted where they begin, but for what opens and flushes."""
    lines: list[tuple[str, str]] = []
    begun: dict[str, int] = {}
    with trace.open() as stream:
        for line in stream:
            thread, _, text = line.rstrip("\n").partition(" ")
            text = text.strip()
            if text.endswith("<unfinished ...>"):
                begun[thread] = len(lines)
                lines.append((thread, text.removesuffix("<unfinished ...>").rstrip()))
            elif text.startswith("<... "):
                number = begun.pop(thread)
                whole = f"{lines[number][1]}{text.partition('resumed>')[2]}"
                waits = whole.startswith(("open", "fsync", "fdatasync", "dup", "fcntl"))
                lines[number] = (thread, "" if waits else whole)
                lines += [(thread, whole)] if waits else []
            else:
                lines.append((thread, text))
    for thread, text in lines:
        parts = _LINE.match(text)
        if parts is not None:
            found = _STRING.findall(parts[2])
            assert not any(more for _, more in found), "a string is cut off"
            arguments = [argument.strip() for argument in _STRING.sub('""', parts[2]).split(",")]
            strings = [bytes.fromhex(string.replace("\\x", "")) for string, _ in found]
            yield _Call(thread, parts[1], arguments, strings, int(parts[3]))


def _named(place: tuple[Node, str]) -> Node:
    node = place[0].names.get(place[1])
    if node is None:
        raise _Missing
    return node


def _text(call: _Call) -> str:
    return f"{call.name} {' '.join(text.decode(errors='replace') for text in call.strings)}"


def _drawn(pending: list[Naming], chance: Random) -> set[Naming]:
    """The pending changes that are lost: one of them, all but one, or some, each with all that need it."""
    if not pending:
        return set()
    how, one = chance.choice(("one", "all but one", "some", "some")), chance.choice(pending)
    if how == "all but one":
        kept: set[Naming] = set()
        needed = [one]
        while needed:
            naming = needed.pop()
            kept.add(naming)
            needed += [other for other in naming.needs if other not in kept]
        return set(pending) - kept
    share = chance.choice((0.1, 0.5, 0.9, 1.0))
    gone = {one} if how == "one" else {naming for naming in pending if chance.random() < share}
    for naming in pending:
        if not gone.isdisjoint(naming.needs):
            gone.add(naming)
    return gone


def _torn(contents: list[bytes], chance: Random) -> bytes:
    """A content between some: the flushed one, the newest, that one's size without its data, or blocks of any."""
    how = chance.choice(("old", "new", "size", "blocks"))
    if how in {"old", "new"}:
        return contents[0 if how == "old" else -1]
    size = len(contents[-1] if how == "size" else chance.choice(contents))
    blocks = []
    for start in range(0, size, BLOCK_BYTES):
        source = contents[0] if how == "size" else chance.choice(contents)
        stop = min(start + BLOCK_BYTES, size)
        blocks.append(source[start:stop].ljust(stop - start, b"\0"))
    return b"".join(blocks)
