"""Parquet, read a few rows at a time. What the Hugging Face Hub knows of class names stands in the file's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plansmith.data.table import Row, Table
from plansmith.errors import EnvironmentFault, SourceError, first_line

_ROWS_AT_ONCE = 256


def read_parquet(path: Path) -> Table:
    """A Parquet file.

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
                        yield Row({name: _plain(v) for name, v in values.items()}, f"{path}, row {number}")
                        number += 1
        except (ArrowException, OSError) as error:
            raise broken(error) from error

    return Table(path.name, tuple(schema.names), rows, _class_names(schema.metadata or {}))


def _plain(value: Any) -> Any:
    """Images of the hub are structs of bytes and a path; what counts are the bytes."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"} and value["bytes"] is not None:
        return value["bytes"]
    return value


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """The names of the classes, by column, as the library `datasets` writes them."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    found = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            found[column] = tuple(map(str, inner["names"]))
    return found
