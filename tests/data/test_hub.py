"""Data sets from a hub, through the real huggingface_hub client, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.sources.dataset import find_splits

from ..support.servers.hub_server import COMMIT, CONVERTED_COMMIT, Hub, running

FETCH = """
import json, sys
from pathlib import Path
from plansmith.data.sample import Takes
from plansmith.data.reader import open_data
from plansmith.config.data import DataSpec
from plansmith.system.digest import Digester
from plansmith.errors import PlansmithError
from plansmith.sources.dataset import find_data
for line in sys.stdin:
    fields = json.loads(line)
    offline = fields.pop("offline", False)
    try:
        place = find_data(DataSpec(**fields), relative_to=Path(), digester=Digester(Path(sys.argv[1])), offline=offline)
        samples = open_data(place, "", {}, Takes(("text",), ("input_ids",))).samples
        print(json.dumps(place.model_dump() | {"samples": [[s.values["text"], s.label] for s in samples]}), flush=True)
    except PlansmithError as error:
        print(json.dumps(error.to_dict()), flush=True)
"""

CARD = """---
license: mit
configs:
- config_name: small
  data_files:
  - split: train
    path: files/a*
  - split: odd
    path: [files/b.jsonl]
---
"""


def fetch(hub: Hub, home: Path, *queries: dict[str, Any]) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", FETCH, str(home / "memo.sqlite")]
    lines = "".join(json.dumps(fields) + "\n" for fields in queries)
    done = subprocess.run(command, env=environment, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def save(folder: Path, files: dict[str, list[str]]) -> Path:
    for name, texts in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            parquet.write_table(pa.table({"text": texts}), path)
        else:
            path.write_text("".join(json.dumps({"text": text, "label": 1}) + "\n" for text in texts))
    return folder


@pytest.mark.slow
def test_split_downloaded_alone(tmp_path: Path) -> None:
    """A split is found by its name, pinned to a commit and downloaded alone."""
    published = save(
        tmp_path / "published",
        {
            "data/train-00000-of-00001.parquet": ["t"],
            "data/validation-00000-of-00002.parquet": ["a"],
            "data/validation-00001-of-00002.parquet": ["b"],
        },
    )
    (published / "README.md").write_text("---\nlicense: mit\n---\n")
    with running(published, "org/set", kind="datasets") as hub:
        validation, train, unknown = fetch(
            hub,
            tmp_path / "home",
            {"dataset": "org/set@v1"},
            {"dataset": "org/set", "split": "train"},
            {"dataset": "org/set", "split": "extra"},
        )
        paths = [path for method, path, _ in hub.requests if method == "GET" and path.endswith(".parquet")]
        again, *_ = fetch(hub, tmp_path / "home", {"dataset": "org/set", "offline": True})
    assert validation["revision"] == train["revision"] == COMMIT
    assert validation["words"] == "org/set, validation split"
    assert [text for text, _ in validation["samples"]] == ["a", "b"]
    assert [text for text, _ in train["samples"]] == ["t"]
    assert validation["digest"] != train["digest"]
    assert len(paths) == 3
    assert (unknown["exit_code"], unknown["message"]) == (2, "data: org/set has no split 'extra'")
    assert "train, validation" in unknown["remedy"]
    assert again["samples"] == validation["samples"]


@pytest.mark.slow
def test_hub_copy_is_fallback(tmp_path: Path) -> None:
    """Without files that can be read, the Hub's own copy is taken."""
    published = tmp_path / "published"
    published.mkdir()
    (published / "set.py").write_text("a script that nobody runs")
    converted = save(
        tmp_path / "converted",
        {"one/test/0000.parquet": ["a"], "two/test/0000.parquet": ["b"], "two/train/0000.parquet": ["c"]},
    )
    with running(published, "org/set", kind="datasets", converted=converted) as hub:
        single, several, pinned = fetch(
            hub,
            tmp_path / "home",
            {"dataset": "org/set", "subset": "two"},
            {"dataset": "org/set"},
            {"dataset": "org/set@v1", "subset": "two"},
        )
    assert (single["revision"], single["files"]) == (CONVERTED_COMMIT, ["two/test/0000.parquet"])
    assert several["message"] == "data: org/set has 2 subsets"
    assert several["remedy"].endswith("one of one, two")
    assert (pinned["exit_code"], "has no files that can be read" in pinned["message"]) == (3, True)


@pytest.mark.slow
def test_card_comes_before_names(tmp_path: Path) -> None:
    """What the card says goes before names, and errors name the data set."""
    published = save(tmp_path / "published", {"files/a1.jsonl": ["x"], "files/a2.jsonl": ["y"], "files/b.jsonl": ["z"]})
    (published / "README.md").write_text(CARD)
    with running(published, "org/set", kind="datasets") as hub:
        card, odd, missing, revision = fetch(
            hub,
            tmp_path / "home",
            {"dataset": "org/set"},
            {"dataset": "org/set", "subset": "small", "split": "odd"},
            {"dataset": "org/none"},
            {"dataset": "org/set@v9"},
        )
    assert (card["words"], card["samples"]) == ("org/set, train split", [["x", 1], ["y", 1]])
    assert odd["samples"] == [["z", 1]]
    assert (missing["exit_code"], "no data set 'org/none'" in missing["message"]) == (3, True)
    assert (revision["exit_code"], "'v9'" in revision["message"]) == (3, True)
    unreachable, cached = fetch(hub, tmp_path / "home2", {"dataset": "org/set"}) + fetch(
        hub, tmp_path / "home", {"dataset": "org/set"}
    )
    assert unreachable["exit_code"] == 9
    assert "path" in unreachable["remedy"]
    assert cached["samples"] == card["samples"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train.csv", "dev.csv", "README.md"], {"default": {"train": ("train.csv",), "validation": ("dev.csv",)}}),
        (["my_file.csv"], {"default": {"train": ("my_file.csv",)}}),
        (["a.parquet", "a.csv"], {"default": {"train": ("a.parquet",)}}),
        (["de/test.jsonl", "en/test.jsonl"], {"de": {"test": ("de/test.jsonl",)}, "en": {"test": ("en/test.jsonl",)}}),
        (["data/test/x.csv"], {"default": {"test": ("data/test/x.csv",)}}),
        (
            ["mnli/validation_matched-00000-of-00001.parquet"],
            {"mnli": {"validation_matched": ("mnli/validation_matched-00000-of-00001.parquet",)}},
        ),
        (["dataset_infos.json", "script.py"], {}),
    ],
)
def test_splits_use_hub_names(files: list[str], expected: dict[str, Any]) -> None:
    """Splits are told by the names that the Hub knows."""
    assert find_splits(files, {}) == expected
