"""ONNX files as sources: which files a model consists of, and whether they can be trusted and read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources import external_data

if TYPE_CHECKING:
    import onnx

_WRITE_AGAIN = "export or download the model again"


def read_graph(path: Path) -> onnx.ModelProto:
    """The graph of a file, without the weights that lie beside it.

    Raises:
        SourceError: the file is empty, cut off, cannot be read, or is no ONNX model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise EnvironmentFault(f"{error.name} is not installed", remedy="pip install 'plansmith[compile]'") from error
    try:
        if not path.stat().st_size:
            raise SourceError(f"{path} is empty", remedy=_WRITE_AGAIN)
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise SourceError(f"{path} is no ONNX model, or is cut off", remedy=_WRITE_AGAIN) from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy="check its permissions") from error
    if not model.graph.output or not any(o.domain in {"", "ai.onnx"} for o in model.opset_import):
        raise SourceError(
            f"{path} holds no ONNX graph with outputs and an operator set", remedy="name a file that an exporter wrote"
        )
    return model


def weights_of(path: Path) -> dict[str, int]:
    """The files that a graph wants its weights from, by the names that it gives them, with their least size in bytes.

    Raises:
        SourceError: as for `read_graph`; or the graph does not say where they lie.
    """
    try:
        return external_data.locations(read_graph(path))
    except ValueError as error:
        raise SourceError(f"{path} does not say where its weights lie: {error}", remedy=_WRITE_AGAIN) from error


def files_of(path: Path, needed: Mapping[str, int]) -> list[Path]:
    """The file of a graph and those of its external weights, which are looked at and not read.

    Args:
        path: the graph.
        needed: what `weights_of` found in it.

    Raises:
        SourceError: weights are missing, cut off, or outside of the graph's folder.
    """
    return sorted({path, *(_weights(path, location, size) for location, size in needed.items())})


def _weights(path: Path, location: str, size: int) -> Path:
    """One file of external weights; the graph names it, and a graph may come from anywhere."""
    place = PurePosixPath(location)
    found = path.parent / place
    if not location or place.is_absolute() or ".." in place.parts:
        raise SourceError(
            f"{path.name} wants weights from {location!r}, which is no path inside its own folder",
            remedy="put the weights beside the graph: onnx.save(model, path, save_as_external_data=True)",
        )
    if not found.resolve().is_relative_to(path.parent.resolve()):
        raise SourceError(
            f"the weights {found} are a link that leads out of the folder of {path.name}",
            remedy="copy the graph and the files themselves into one folder (cp -L)",
        )
    if not found.is_file():
        raise SourceError(
            f"{path.name} keeps weights in {location!r}, and there is no file {found}",
            remedy="put the file of weights beside the graph, under the name that it was exported with",
        )
    if found.stat().st_size < size:
        raise SourceError(
            f"{found} is cut off: it has {found.stat().st_size:,} bytes, {path.name} needs {size:,}",
            remedy=_WRITE_AGAIN,
        )
    return found
