"""Files that an MLflow server hands out itself (mlflow-artifacts:), whatever store stands behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from plansmith.errors import SourceError
from plansmith.sources.mlflow.allowlist import API
from plansmith.sources.mlflow.client import MlflowServer
from plansmith.sources.remote_files import MOST_FILES, RemoteFile, require_plain, too_many

_DEEPEST = 8


class ServedFiles:
    """The files of one version on an MLflow server.

    Args:
        server: hands them out.
        path: of their folder, below its artefacts.
        of: the version, for errors.
    """

    def __init__(self, server: MlflowServer, path: str, of: str) -> None:
        self._server = server
        self._path = path
        self._of = of

    def listed(self) -> tuple[RemoteFile, ...]:
        """As `RemoteFiles.listed`; a server lists one folder at a time."""
        found: list[RemoteFile] = []
        folders, seen = [""], 0
        while folders:
            folder = folders.pop()
            for one in self._folder(folder):
                path = f"{folder}/{_text(one, 'path')}" if folder else _text(one, "path")
                require_plain(path, self._of)
                seen += 1
                if seen > MOST_FILES or path.count("/") > _DEEPEST:
                    raise too_many(self._of)
                if one.get("is_dir"):
                    folders.append(path)
                else:
                    found.append(RemoteFile(path, _size(one)))
        if not found:
            raise SourceError(f"{self._of} has no files in its store", remedy="log and register the model again")
        return tuple(sorted(found, key=lambda file: file.path))

    def pieces(self, path: str) -> Iterator[bytes]:
        """As `RemoteFiles.pieces`."""
        where = "/".join(part for part in (self._path, path) if part)
        return self._server.pieces(f"{API}/{quote(where)}", f"{path} of {self._of}")

    def _folder(self, folder: str) -> list[dict[str, Any]]:
        where = "/".join(part for part in (self._path, folder) if part)
        answer = self._server.ask(API, f"files of {self._of}", {"path": where})
        files = answer.get("files", [])
        return [one for one in files if isinstance(one, dict)] if isinstance(files, list) else []


def _text(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    return value if isinstance(value, str) else ""


def _size(one: dict[str, Any]) -> int:
    """MLflow writes 64-bit numbers as text, as protobuf's JSON does, and leaves zero out."""
    value = str(one.get("file_size", 0))
    return int(value) if value.isdigit() else 0
