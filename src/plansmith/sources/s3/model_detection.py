"""Which files of a folder are a model, and of which kind, where nothing but themselves says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import SourceError
from plansmith.sources.directory import CONFIG_FILE, GRAPH_SUFFIX, graphs_of
from plansmith.sources.mlflow.flavors import FlavorFiles, FlavorOptions, described_files, graph_alone, plain_folder
from plansmith.sources.mlflow.module_files import MODEL_FILE
from plansmith.sources.remote_files import RemoteFile, RemoteFiles, require_plain

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class LocalFiles:
    """`RemoteFiles` of a folder of this machine.

    Args:
        folder: that holds them.
        of: the model, for errors.
    """

    folder: Path
    of: str

    def listed(self) -> tuple[RemoteFile, ...]:
        """As `RemoteFiles.listed`."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        found = tuple(RemoteFile(path.relative_to(self.folder).as_posix(), path.stat().st_size) for path in paths)
        for file in found:
            require_plain(file.path, self.of)
        return found

    def pieces(self, path: str) -> Iterator[bytes]:
        """As `RemoteFiles.pieces`."""
        with (self.folder / path).open("rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece


def detect_model(files: RemoteFiles, wishes: FlavorOptions, of: str) -> FlavorFiles:
    """Which files are the model: as MLmodel says, a folder of transformers or timm, or the one ONNX file.

    Args:
        files: of a folder.
        wishes: what may come along.
        of: what the model is called in errors.

    Raises:
        SourceError: they are none of that.
    """
    listed = files.listed()
    names = [file.path for file in listed]
    if MODEL_FILE in names:
        return described_files(files, listed, wishes, of)[1]
    graphs = graphs_of(names)
    if graphs is None:
        return plain_folder(listed, wishes, of)
    if len(graphs) == 1:
        return graph_alone(graphs[0], listed, of)
    found = (
        f"several {GRAPH_SUFFIX} files ({', '.join(graphs)[:200]})"
        if graphs
        else f"neither {CONFIG_FILE} nor {GRAPH_SUFFIX}"
    )
    raise SourceError(
        f"{of} is no model: it holds {found}",
        remedy="put there what save_pretrained wrote, one ONNX file with its weights, or a model that MLflow logged",
    )
