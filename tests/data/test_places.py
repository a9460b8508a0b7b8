"""Where data lie, as the parent finds out: paths, digests that follow the content, and code of one's own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from plansmith.config.data import DataSpec
from plansmith.data.reader import DataPlace, digest_of_samples, open_data
from plansmith.data.sample import Takes
from plansmith.errors import PlansmithError, SourceError, UsageError
from plansmith.sources.dataset import find_data, require_data_unchanged
from plansmith.system.digest import Digester

from .test_readers import save_image

TEXTS = Takes(("text", "text_pair"), ("input_ids",))

OWN = """import numpy as np

def reviews():
    for i in range(4):
        yield {"text": f"review {i}", "label": i % 2}

def arrays():
    return [{"x": np.full(3, i, np.float32)} for i in range(2)]

def broken():
    yield {"text": "a"}
    raise ValueError("no more")

def nothing():
    return []

def words():
    yield "text"

number = 5
"""


@pytest.fixture
def digester(tmp_path: Path) -> Digester:
    return Digester(tmp_path / "memo.sqlite")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a user's own beside the spec; forgotten before and afterwards."""
    (tmp_path / "mydata").mkdir()
    (tmp_path / "mydata" / "__init__.py").write_text("")
    (tmp_path / "mydata" / "sets.py").write_text(OWN)
    (tmp_path / "mydata" / "needs.py").write_text("import not_there_at_all\n")
    (tmp_path / "mydata" / "fails.py").write_text("x = 1\nx.y\n")
    for name in [n for n in sys.modules if n.partition(".")[0] == "mydata"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def find(folder: Path, digester: Digester, **fields: str) -> DataPlace:
    return find_data(DataSpec.model_validate(fields), relative_to=folder, digester=digester)


def test_file_known_by_content(tmp_path: Path, digester: Digester) -> None:
    """A file is found from the spec on and known by its content."""
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / "inner").mkdir()
    first = find(tmp_path / "inner", digester, path="../a.csv")
    assert (first.kind, first.folder, first.files) == ("files", str(tmp_path), ("a.csv",))
    require_data_unchanged(first, digester)
    (tmp_path / "a.csv").write_text("text\nb\n")
    assert find(tmp_path, digester, path="a.csv").digest != first.digest
    with pytest.raises(SourceError, match="changed while they were read"):
        require_data_unchanged(first, digester)


def test_image_folder_known_by_files(tmp_path: Path, digester: Digester) -> None:
    """A folder of images is known by its files and their places."""
    save_image(tmp_path / "images" / "cat" / "a.png", 1)
    save_image(tmp_path / "images" / "dog" / "b.png", 2)
    first = find(tmp_path, digester, path="images")
    assert (first.kind, first.files) == ("images", ("cat/a.png", "dog/b.png"))
    (tmp_path / "images" / "dog" / "b.png").rename(tmp_path / "images" / "cat" / "b.png")
    assert find(tmp_path, digester, path="images").digest != first.digest
    with pytest.raises(SourceError, match="changed"):
        require_data_unchanged(first, digester)


def test_row_images_count(tmp_path: Path, digester: Digester) -> None:
    """Images that rows name count too."""
    save_image(tmp_path / "images" / "a.png", 1)
    (tmp_path / "a.jsonl").write_text('{"image": "images/a.png"}\n')
    first = find(tmp_path, digester, path="a.jsonl")
    assert first.files == ("a.jsonl",)
    save_image(tmp_path / "images" / "a.png", 2)
    assert find(tmp_path, digester, path="a.jsonl").digest != first.digest


@pytest.mark.parametrize(
    ("path", "kind", "says"),
    [
        ("none.csv", SourceError, "there is no file or folder"),
        ("a.xlsx", UsageError, r"cannot tell what a\.xlsx is by its name"),
        ("empty", SourceError, r"empty holds no images"),
        ("mixed", SourceError, r"both beside its subfolders and in them \(a\.png, cat/b\.png\)"),
    ],
)
def test_unusable_data_refused_early(
    path: str, kind: type[PlansmithError], says: str, tmp_path: Path, digester: Digester
) -> None:
    """What cannot be data is refused before a model is loaded."""
    (tmp_path / "a.xlsx").write_text("")
    (tmp_path / "empty").mkdir()
    save_image(tmp_path / "mixed" / "a.png", 1)
    save_image(tmp_path / "mixed" / "cat" / "b.png", 1)
    with pytest.raises(kind, match=says) as caught:
        find(tmp_path, digester, path=path)
    assert caught.value.remedy


def test_own_function_known_by_samples(own: Path, digester: Digester) -> None:
    """A function of one's own is found beside the spec and known by its samples."""
    place = find(own, digester, entry_point="mydata.sets:reviews")
    assert (place.kind, place.digest, place.files) == ("entry_point", "", ())
    before = list(sys.path)
    reading = open_data(place, "mydata.sets:reviews", {}, TEXTS)
    assert [(s.values["text"], s.label) for s in reading.samples][:2] == [("review 0", 0), ("review 1", 1)]
    assert sys.path == before
    assert digest_of_samples(place, "mydata.sets:reviews") == digest_of_samples(place, "mydata.sets:reviews")
    assert digest_of_samples(place, "mydata.sets:reviews") != digest_of_samples(place, "mydata.sets:arrays")
    arrays = open_data(place, "mydata.sets:arrays", {}, Takes((), ("x",))).samples
    np.testing.assert_array_equal([s.values["x"] for s in arrays], [[0, 0, 0], [1, 1, 1]])


def test_unstable_function_refused(own: Path, digester: Digester) -> None:
    """A function that yields other samples each time is refused."""
    (own / "lots.py").write_text(
        "from itertools import count\nnext_one = count()\n\n\n"
        "def texts():\n    for _ in range(9):\n        yield {'text': f'text {next(next_one)}'}\n"
    )
    place = find(own, digester, entry_point="lots:texts")
    pinned_place = place.model_copy(update={"digest": digest_of_samples(place, "lots:texts")})
    with pytest.raises(SourceError, match="lots:texts yields other samples each time") as caught:
        list(open_data(pinned_place, "lots:texts", {}, TEXTS).samples)
    assert "seed it" in caught.value.remedy


def test_function_samples_can_be_reread(own: Path, digester: Digester) -> None:
    """Samples of a function can be read again."""
    place = find(own, digester, entry_point="mydata.sets:reviews")
    pinned_place = place.model_copy(update={"digest": digest_of_samples(place, "mydata.sets:reviews")})
    samples = open_data(pinned_place, "mydata.sets:reviews", {}, TEXTS).samples
    assert [s.digest for s in samples] == [s.digest for s in samples] != []


def test_uncovered_image_refused(tmp_path: Path, digester: Digester) -> None:
    """An image that no digest covers is refused."""
    save_image(tmp_path / "elsewhere" / "a.png", 1)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text('{"image": "../elsewhere/a.png"}\n')
    place = find(tmp_path, digester, path="rows/a.jsonl")
    with pytest.raises(SourceError, match="lies outside of") as caught:
        list(open_data(place, "", {}, Takes(("image",), ("pixel_values",))).samples)
    assert "put it below" in caught.value.remedy


@pytest.mark.parametrize(
    ("entry_point", "kind", "says"),
    [
        ("mydata.none:reviews", UsageError, r"there is no module 'mydata\.none'"),
        ("mydata.needs:reviews", UsageError, r"there is no module 'not_there_at_all', which mydata\.needs imports"),
        ("mydata.fails:reviews", SourceError, r"cannot be imported: AttributeError.*fails\.py:2\)"),
        ("mydata.sets:review", UsageError, r"mydata\.sets has no function 'review'"),
        ("mydata.sets:number", UsageError, r"mydata\.sets has no function 'number'"),
        ("mydata.sets:broken", SourceError, r"fails: ValueError: no more \(.*sets\.py:12\)"),
        ("mydata.sets:nothing", SourceError, "yields no samples"),
        ("mydata.sets:words", SourceError, "sample 0 is a str, not a mapping"),
    ],
)
def test_failing_function_names_line(
    entry_point: str, kind: type[PlansmithError], says: str, own: Path, digester: Digester
) -> None:
    """Code of one's own that fails is told with its line."""
    place = find(own, digester, entry_point=entry_point)
    with pytest.raises(kind, match=says):
        list(open_data(place, entry_point, {}, TEXTS).samples)
