"""Files of every format, read; and files that cannot be, told with file and line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.data.reader import DataPlace, open_data
from plansmith.data.sample import Sample, Takes
from plansmith.errors import EnvironmentFault, SourceError, UsageError

TEXTS = Takes(("text", "text_pair"), ("input_ids", "attention_mask"), optional=("attention_mask",))
IMAGES = Takes(("image",), ("pixel_values",))
DIGITS = Takes((), ("x",))


def read(path: Path, takes: Takes = TEXTS, **columns: str) -> list[Sample]:
    files = (
        tuple(sorted(p.relative_to(path).as_posix() for p in path.rglob("*.png"))) if path.is_dir() else (path.name,)
    )
    place = DataPlace(
        kind="images" if path.is_dir() else "files",
        folder=str(path if path.is_dir() else path.parent),
        files=files,
        digest="",
        revision=None,
        words=path.name,
    )
    return list(open_data(place, "", columns, takes).samples)


def values(samples: list[Sample]) -> list[tuple[Any, ...]]:
    return [(*s.values.values(), s.label) for s in samples]


def save_parquet(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(columns)
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    return path


def save_image(path: Path, grey: int) -> Path:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (grey, grey, grey)).save(path)
    return path


def test_text_lines_are_samples(tmp_path: Path) -> None:
    """Lines of text are samples, and blank lines are none."""
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  two  \nthree".encode())
    assert values(read(path)) == [("one", None), ("two", None), ("three", None)]


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_quotes_hide_separators(suffix: str, separator: str, tmp_path: Path) -> None:
    """Separated values keep what quotes hide."""
    path = tmp_path / f"a{suffix}"
    path.write_text(separator.join(["label", "text"]) + f'\n1{separator}"a{separator} b\nc ""d"""\n0{separator}ü\n')
    assert values(read(path)) == [(f'a{separator} b\nc "d"', "1"), ("ü", "0")]


def test_json_lines_equal_json_list(tmp_path: Path) -> None:
    """JSON lines and a JSON list are the same."""
    rows = [{"premise": "a", "hypothesis": "b", "label": 2}, {"premise": "c", "hypothesis": "d", "label": 0}]
    lines, whole = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    whole.write_text(json.dumps(rows, indent=1))
    assert values(read(lines)) == values(read(whole)) == [("a", "b", 2), ("c", "d", 0)]
    assert [s.digest for s in read(lines)] == [s.digest for s in read(whole)]


def test_parquet_tells_class_names(tmp_path: Path) -> None:
    """Parquet tells the names of its classes."""
    features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "sentence": {"_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path = save_parquet(tmp_path / "a.parquet", {"idx": [7, 8], "sentence": ["a", "b"], "label": [1, 0]}, metadata)
    assert values(read(path)) == [("a", "pos"), ("b", "neg")]


def test_parquet_holds_words_and_images(tmp_path: Path) -> None:
    """Parquet holds words and tags and images."""
    features = {"ner_tags": {"feature": {"names": ["O", "PER"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    file = save_parquet(tmp_path / "w.parquet", {"tokens": [["A", "b"]], "ner_tags": [[1, 0]]}, metadata)
    assert values(read(file)) == [(["A", "b"], ["PER", "O"])]
    content = save_image(tmp_path / "i.png", 9).read_bytes()
    images = save_parquet(tmp_path / "i.parquet", {"image": [{"bytes": content, "path": None}], "label": [3]})
    assert values(read(images, IMAGES)) == [(content, 3)]


def test_image_folders_are_classes(tmp_path: Path) -> None:
    """Folders of images are classes, and a flat one has none."""
    paths = [save_image(tmp_path / name, grey) for name, grey in (("cat/a.png", 1), ("dog/b.png", 2), ("dog/c.png", 2))]
    samples = read(tmp_path, IMAGES)
    assert values(samples) == [(paths[0], "cat"), (paths[1], "dog"), (paths[2], "dog")]
    assert samples[1].digest == samples[2].digest != samples[0].digest
    assert values(read(tmp_path / "dog", IMAGES)) == [(paths[1], None), (paths[2], None)]


def test_rows_name_images_beside_file(tmp_path: Path) -> None:
    """Rows may name images that lie beside their file."""
    image = save_image(tmp_path / "images" / "a.png", 1)
    path = tmp_path / "a.csv"
    path.write_text("file_name,label\nimages/a.png,2\n")
    assert values(read(path, IMAGES)) == [(image, "2")]
    path.write_text("file_name,label\nimages/a.png,2\nimages/b.png,2\n")
    with pytest.raises(SourceError, match=r"a\.csv:3: there is no image .*b\.png"):
        read(path, IMAGES)


def test_arrays_split_along_first_axis(tmp_path: Path) -> None:
    """Arrays are split along their first axis."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(6, dtype=np.float32).reshape(2, 3), label=np.array([4, 5]))
    samples = read(path, DIGITS)
    assert [s.label for s in samples] == [4, 5]
    np.testing.assert_array_equal(samples[1].values["x"], [3, 4, 5])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"fine\n\xe9t\xe9\n", r"a\.txt:2 is not UTF-8"),
        ("a.csv", b"text,label\na,1\nb\n", r"a\.csv:3 has 1 field where the header has 2"),
        ("a.csv", b'text,label\n"a"b,1\n', r"a\.csv:2 cannot be split into fields"),
        ("a.csv", b'text,label\n"a,1\n', r"a\.csv:\d cannot be split into fields"),
        ("a.csv", b"text,text\na,b\n", r"a\.csv:1 names 'text' twice"),
        ("a.csv", b"", r"a\.csv is empty"),
        ("a.tsv", b"text\tlabel\na\t1\nb\t1\t2\n", r"a\.tsv:3 has 3 field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', r"a\.jsonl:2 is no JSON object"),
        ("a.jsonl", b'{"text": "a"}\n5\n', r"a\.jsonl:2 is no JSON object: 5"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', r"a\.jsonl:2 has no value for 'text'"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 5}\n', r"a\.jsonl:2: 'text' is a int, not text"),
        (
            "a.jsonl",
            b'{"text": "a", "label": 1}\n{"text": "b", "label": null}\n',
            r"a\.jsonl:2 has no value for the label",
        ),
        ("a.jsonl", b"\n", r"a\.jsonl is empty"),
        ("a.json", b'[{"text": "a"},\n{"text" 1}]', r"a\.json:2 is not JSON"),
        ("a.parquet", b"PAR1 but no more", r"a\.parquet cannot be read"),
        ("a.npz", b"PK but no more", r"a\.npz is no \.npz file, or is cut off"),
    ],
)
def test_unreadable_data_names_line(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    """What cannot be read is told with its file and line."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SourceError, match=says) as caught:
        read(path)
    assert caught.value.exit_code == 3
    assert caught.value.remedy


def test_pickled_npz_objects_refused(tmp_path: Path) -> None:
    """Pickled objects in an NPZ file are refused."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SourceError, match=r"cannot be read as \.npz"):
        read(path, DIGITS)


def test_arrays_beyond_memory_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that unpack to more than the free memory are refused before they are unpacked."""
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros(100_000))
    monkeypatch.setattr("plansmith.data.tables.usable_memory", lambda: 799_999)
    with pytest.raises(SourceError, match=r"it unpacks to 781\.4 KiB, which is more than the free memory"):
        read(tmp_path / "data.npz", DIGITS)


def test_unequal_arrays_refused(tmp_path: Path) -> None:
    """Arrays of different lengths are refused."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2)), label=np.zeros(2))
    with pytest.raises(SourceError, match=r"x \[3, 2\], label \[2\]: the first axis"):
        read(path, DIGITS)


def test_missing_pyarrow_says_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet without PyArrow says what to install."""
    path = save_parquet(tmp_path / "a.parquet", {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match="pyarrow is not installed") as caught:
        read(path)
    assert caught.value.remedy == "pip install 'plansmith[data]'"


def test_csv_numbers_read_as_json(tmp_path: Path) -> None:
    """Numbers of a CSV file are read as JSON, and words are refused."""
    path = tmp_path / "a.csv"
    path.write_text('x,label\n"[1, 2]",0\n"[3, 4]",1\n')
    assert [s.values["x"].tolist() for s in read(path, DIGITS)] == [[1, 2], [3, 4]]
    path.write_text("x,label\nwords,0\n")
    with pytest.raises(UsageError, match=r"a\.csv:2: 'x' holds no numbers"):
        read(path, DIGITS)


def test_broken_image_is_named(tmp_path: Path) -> None:
    """A file that is not an image is named."""
    from plansmith.data.tables import open_image

    path = tmp_path / "a.png"
    path.write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"a\.png is no image"):
        open_image(path, str(path))
    with pytest.raises(SourceError, match=r"row 3: an image is an array of uint8"):
        open_image(np.zeros((4, 4)), "row 3")
    assert open_image(np.full((2, 3, 1), 7, np.uint8), "row 3").size == (3, 2)
