"""Row readers: text lines, CSV, JSON lines, arrays, Parquet, and folders of images."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, is_zipfile

from plansmith.config.data import IMAGE, LABEL, TEXT
from plansmith.errors import EnvironmentFault, SourceError, first_line
from plansmith.formatting import count, format_bytes
from plansmith.system.memory import usable_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

# Python's own limit, 128 KiB, is shorter than a long document.
_LONGEST_FIELD = 64 << 20
_SHOWN = 60
_WRITE_AGAIN = "write it again: numpy.savez(path, input_name=array, label=labels)"
_ROWS_AT_ONCE = 256

UNREADABLE_ARRAYS = (
    *(OSError, EOFError, ValueError, TypeError, AttributeError, LookupError, RuntimeError, MemoryError),
    *(BadZipFile, zlib.error, SyntaxError, TokenError),
)
"""What NumPy raises at a damaged .npy or .npz file. RuntimeError is an archive that is encrypted or packed in a way
unknown here; MemoryError sizes that cannot be true."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


@dataclass(frozen=True)
class Row:
    """Row: values by column, and its location ("reviews.csv:17") for errors."""

    values: Mapping[str, Any]
    where: str


@dataclass(frozen=True)
class Table:
    """Table: an open data file or folder.

    Args:
        name: of the file, for errors and words.
        columns: in the file's order.
        rows: yields the rows, with at least the named columns; raises SourceError with the place of a bad one.
        class_names: for the columns that hold class ids or names: the names in the order of the ids.
    """

    name: str
    columns: tuple[str, ...]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_lines(path: Path) -> Table:
    """Read one text per line; skips blank lines."""

    def rows(_: Sequence[str]) -> Iterator[Row]:
        for number, line in _decoded(path):
            if line.strip():
                yield Row({TEXT: line.strip()}, f"{path}:{number}")

    return Table(path.name, (TEXT,), rows)


def read_separated(path: Path, separator: str) -> Table:
    """Read CSV or TSV with a header; quotes protect separators and line breaks.

    Raises:
        SourceError: there is no header, or it names a column twice.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    header = next((fields for _, fields in _fields(path, separator)), [])
    if not header:
        raise SourceError(f"{path} is empty", remedy="put a header with the columns' names into its first line")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise SourceError(f"{path}:1 names {', '.join(map(repr, repeated))} twice", remedy="give each column a name")

    def rows(_: Sequence[str]) -> Iterator[Row]:
        lines = _fields(path, separator)
        next(lines)
        for number, fields in lines:
            if len(fields) != len(header):
                raise SourceError(
                    f"{path}:{number} has {count(len(fields), 'field')} where the header has {len(header)}",
                    remedy=f"put quotes around values that hold {separator!r}, or mend that line",
                )
            yield Row(dict(zip(header, fields, strict=True)), f"{path}:{number}")

    return Table(path.name, tuple(header), rows)


def read_json(path: Path) -> Table:
    """Read JSON lines, or one list of objects; the first object determines the columns.

    Raises:
        SourceError: the file is empty, or its first object cannot be read.
    """

    def rows(_: Sequence[str]) -> Iterator[Row]:
        for where, value in _objects(path):
            if not isinstance(value, dict):
                raise SourceError(
                    f"{where} is no JSON object: {_shortened(value)}", remedy='write one {"text": …} a line'
                )
            yield Row(value, where)

    first = next(rows(()), None)
    if first is None:
        raise SourceError(f"{path} is empty", remedy='write one {"text": …} a line')
    return Table(path.name, tuple(first.values), rows)


def _decoded(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the decoded lines with their numbers, line endings included."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{path}:{number} is not UTF-8: {error.reason} at byte {error.start}",
                        remedy=f"write it as UTF-8: iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}",
                    ) from error
    except OSError as error:
        raise SourceError(
            f"cannot read {path}: {error.strerror}", remedy="check the path and its permissions"
        ) from error


def _fields(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank records with the number of the line that each ends in."""
    reader = csv.reader((line for _, line in _decoded(path)), delimiter=separator, strict=True)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SourceError(
                f"{path}:{reader.line_num} cannot be split into fields: {error}", remedy="mend the quotes in that line"
            ) from error
        if fields:
            yield reader.line_num, fields


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the values of a JSON file with their positions."""
    is_first = True
    for number, line in _decoded(path):
        if not line.strip():
            continue
        if is_first and line.lstrip().startswith("["):
            yield from _listed(path)
            return
        is_first = False
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{path}:{number} is not JSON: {error}: {_shortened(line)}", remedy="write one whole object a line"
            ) from error
        yield f"{path}:{number}", value


def _listed(path: Path) -> Iterator[tuple[str, Any]]:
    text = "".join(line for _, line in _decoded(path))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}:{error.lineno} is not JSON: {error.msg}", remedy="mend that line") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {first_line(error)}", remedy='write one {"text": …} a line') from error
    for number, value in enumerate(values):
        yield f"{path}, item {number}", value


def _shortened(value: Any) -> str:
    text = str(value).strip()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def read_arrays(path: Path) -> Table:
    """Read a .npz file.

    Raises:
        SourceError: it is none, holds objects, or arrays of different lengths.
    """
    import numpy as np

    if path.is_file() and not is_zipfile(path):
        raise SourceError(f"{path} is no .npz file, or is cut off", remedy=_WRITE_AGAIN)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            size = sum(entry.file_size for entry in stored.zip.infolist())
            if size > usable_memory():
                raise MemoryError(f"it unpacks to {format_bytes(size)}, which is more than the free memory")
            arrays = {name: require_array(stored[name]) for name in stored.files}
    except UNREADABLE_ARRAYS as error:
        raise SourceError(f"{path} cannot be read as .npz: {first_line(error)}", remedy=_WRITE_AGAIN) from error
    lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) > 1 or None in lengths.values():
        description = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "nothing"
        raise SourceError(
            f"{path} holds {description}: the first axis of all is that of the samples", remedy=_WRITE_AGAIN
        )

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        for number in range(len(next(iter(arrays.values())))):
            yield Row({name: _plain_text(arrays[name][number]) for name in columns}, f"{path}, row {number}")

    return Table(path.name, tuple(arrays), rows)


def require_array(value: object) -> NDArray[Any]:
    """Return an entry of a .npz file if it is an array.

    Raises:
        ValueError: it is another file, which NumPy gives as bytes, or a text in what is no Unicode.
    """
    import numpy as np

    if not isinstance(value, np.ndarray):
        raise ValueError("it holds another file")  # noqa: TRY004 - as NumPy's own
    if value.dtype.kind == "U":
        try:
            value.tolist()
        except SystemError as error:
            raise ValueError("it holds a text with letters that Unicode does not have") from error
    return value


def _plain_text(value: Any) -> Any:
    """Convert texts to Python strings."""
    return str(value) if getattr(value, "dtype", None) is not None and value.dtype.kind == "U" else value


def read_parquet(path: Path) -> Table:
    """Read a Parquet file.

    Raises:
        SourceError: it is none, or is cut off.
        EnvironmentFault: pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise EnvironmentFault(
            f"{path.name} is Parquet, and pyarrow is not installed", remedy="pip install 'plansmith[data]'"
        ) from error

    def broken(error: Exception) -> SourceError:
        return SourceError(f"{path} cannot be read: {first_line(error)}", remedy="write or download the file again")

    try:
        schema = parquet.read_schema(path)
    except (ArrowException, OSError) as error:
        raise broken(error) from error

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
                    for values in batch.to_pylist():
                        yield Row({name: _image_bytes(v) for name, v in values.items()}, f"{path}, row {number}")
                        number += 1
        except (ArrowException, OSError) as error:
            raise broken(error) from error

    return Table(path.name, tuple(schema.names), rows, _class_names(schema.metadata or {}))


def _image_bytes(value: Any) -> Any:
    """Return the bytes of images, which the Hugging Face hub stores as structs of bytes and path."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"} and value["bytes"] is not None:
        return value["bytes"]
    return value


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the class names by column, as the library `datasets` writes them."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    class_names = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            class_names[column] = tuple(map(str, inner["names"]))
    return class_names


def image_files(folder: Path) -> list[Path]:
    """Return the images of a folder and of its direct subfolders, sorted by name.

    Raises:
        SourceError: there are none, or both beside and in subfolders, so that some would have no class.
    """
    if not folder.is_dir():
        raise SourceError(f"there is no folder {folder}", remedy="check the path")
    flat = _images(folder)
    inner = [path for place in sorted(folder.iterdir()) if _is_class(place) for path in _images(place)]
    if flat and inner:
        raise SourceError(
            f"{folder} holds images both beside its subfolders and in them ({flat[0].name},"
            f" {inner[0].relative_to(folder)})",
            remedy="make one subfolder a class, or put all images into the folder itself",
        )
    if not flat and not inner:
        raise SourceError(
            f"{folder} holds no images ({', '.join(sorted(SUFFIXES))})",
            remedy="put them there, in one subfolder a class where there are classes",
        )
    return flat or inner


def read_images(folder: Path, files: Sequence[Path]) -> Table:
    """Read images as rows; a subfolder's name is the label of its images."""
    is_flat = all(path.parent == folder for path in files)
    classes = () if is_flat else tuple(sorted({path.parent.name for path in files}))

    def rows(_: Sequence[str]) -> Iterator[Row]:
        for path in files:
            yield Row({IMAGE: path} if is_flat else {IMAGE: path, LABEL: path.parent.name}, str(path))

    columns = (IMAGE,) if is_flat else (IMAGE, LABEL)
    return Table(folder.name, columns, rows, {} if is_flat else {LABEL: classes})


def open_image(value: Any, where: str, mode: str = "RGB") -> Image.Image:
    """Open an image in a PIL mode.

    Args:
        value: a path, the bytes of a file, an image of PIL, or an array of pixels: [height, width(, channels)], uint8.
        where: its place in the data, for errors.
        mode: "RGB" or, for one channel, "L".

    Raises:
        SourceError: it cannot be read.
    """
    import numpy as np
    from PIL import Image

    if not isinstance(value, Image.Image | Path | bytes):
        value = np.asarray(value)
        if value.dtype != np.uint8 or value.ndim not in {2, 3}:
            raise SourceError(
                f"{where}: an image is an array of uint8 [height, width, channels], not {value.dtype}"
                f" {list(value.shape)}",
                remedy="scale its pixels to 0..255 and make them uint8, or map the column to the model's input itself",
            )
    try:
        if isinstance(value, Image.Image):
            return value.convert(mode)
        if isinstance(value, Path | bytes):
            with Image.open(io.BytesIO(value) if isinstance(value, bytes) else value) as opened:
                return opened.convert(mode)
        return Image.fromarray(value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value).convert(mode)
    except Exception as error:  # a damaged file makes decoders raise anything, such as struct.error
        raise SourceError(
            f"{where} is no image that can be read: {first_line(error)}", remedy="take it out, or write it again"
        ) from error


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file() and p.name[0] != ".")


def _is_class(place: Path) -> bool:
    return place.is_dir() and not place.name.startswith(".")
