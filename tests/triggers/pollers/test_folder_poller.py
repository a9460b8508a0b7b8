"""A folder of models tells of each that is complete, once it stays as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from plansmith.config.service.triggers import FolderRegistry, Rule
from plansmith.errors import EnvironmentFault
from plansmith.system.digest import Digester
from plansmith.triggers.pollers.folder import FolderPoller
from plansmith.triggers.registries.event import Event

NOW = 1795165608.0


class Watched:
    """A folder of models, what looks at it, and what was said."""

    def __init__(self, root: Path, model: str = "*") -> None:
        self.folder = root / "models"
        self.folder.mkdir()
        self.said: list[str] = []
        self.digester = Digester(root / "digests.sqlite")
        self.poller = FolderPoller(
            "shelf",
            FolderRegistry(type="folder", path="models"),
            self.folder,
            (Rule(registry="shelf", model=model, when="ready", spec="ranker.yaml"),),
            digester=self.digester,
            tell=self.said.append,
        )

    def put(self, model: str, files: Mapping[str, str] = MappingProxyType({}), *, ready: bool = True) -> Path:
        """Put a model there, as files with their texts."""
        folder = self.folder / model
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            folder.joinpath(name).write_text(text)
        if ready:
            folder.joinpath("_READY").touch()
        return folder

    def poll(self) -> list[Event]:
        return [event for delivery in self.poller.poll(NOW) for event in delivery.events]

    def ids(self) -> list[str]:
        return [delivery.id for delivery in self.poller.poll(NOW)]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_model_counts_when_it_was_the_same_in_two_looks(watched: Watched) -> None:
    folder = watched.put("ranker", {"config.json": "{}", "model.safetensors": "weights"})
    assert (watched.poll(), watched.poller.has_more) == ([], True)
    (event,) = watched.poll()
    assert watched.poller.has_more is False
    assert (event.registry, event.model, event.change) == ("shelf", "ranker", "ready")
    assert event.source == f"hf:{folder}"
    assert len(event.version) == 64


def test_a_model_that_is_still_written_waits_for_its_ready_file_and_for_its_files(watched: Watched) -> None:
    folder = watched.put("ranker", {"config.json": "{}"}, ready=False)
    assert watched.poll() == watched.poll() == []
    folder.joinpath("_READY").touch()
    assert watched.poll() == []
    folder.joinpath("model.safetensors").write_text("half")
    assert watched.poll() == []
    assert len(watched.poll()) == 1


def test_each_content_has_an_id_of_its_own_and_the_same_content_the_same(watched: Watched, tmp_path: Path) -> None:
    folder = watched.put("ranker", {"model.onnx": "one"})
    watched.poll()
    first = watched.ids()
    assert watched.ids() == first
    folder.joinpath("model.onnx").write_text("two")
    assert watched.ids() == []
    second = watched.ids()
    assert second != first
    shutil.rmtree(folder)
    assert watched.ids() == []
    watched.put("ranker", {"model.onnx": "one"})
    folder.joinpath("_READY").write_text("again, by another run")
    watched.poll()
    assert watched.ids() == first
    os.utime(folder / "model.onnx")
    watched.poll()
    assert watched.ids() == first
    (tmp_path / "other").mkdir()
    anew = Watched(tmp_path / "other")
    anew.put("ranker", {"model.onnx": "one"})
    anew.poll()
    assert [event.version for event in anew.poll()] == [event.version for event in watched.poll()]


def test_content_is_read_once_and_not_at_all_where_no_rule_wants_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "rank*")
    watched.put("ranker", {"model.onnx": "one"})
    watched.put("other", {"model.onnx": "one"})
    watched.poll()
    assert [event.model for event in watched.poll()] == ["ranker"]
    assert [event.model for event in watched.poll()] == ["ranker"]
    assert watched.digester.hashed == 1


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"config.json": "{}", "model.safetensors": "w"}, "hf:{}"),
        ({"config.json": json.dumps({"architecture": "resnet18"}), "model.safetensors": "w"}, "timm:{}"),
        ({"model.onnx": "graph"}, "onnx:{}/model.onnx"),
        ({"config.json": "{}", "ranker.onnx": "graph", "ranker.data": "w"}, "onnx:{}/ranker.onnx"),
        ({"config.json": "{}", "model.safetensors": "w", "a.onnx": "", "b.onnx": ""}, "hf:{}"),
    ],
)
def test_the_source_is_what_lies_there(watched: Watched, files: dict[str, str], source: str) -> None:
    folder = watched.put("ranker", files)
    watched.poll()
    assert [event.source for event in watched.poll()] == [source.format(folder)]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"notes.txt": "?"}, "it holds neither config.json nor an .onnx file"),
        ({}, "it holds neither config.json nor an .onnx file"),
        ({"a.onnx": "", "b.onnx": ""}, "it holds several .onnx files"),
        ({"config.json": "{"}, "config.json is no JSON"),
        ({"config.json": "[" * 100_000}, "config.json is no JSON"),
        ({"config.json": " " * (1 << 21)}, "config.json is too large to be one"),
    ],
)
def test_what_is_no_model_is_said_once_and_holds_up_no_other(
    watched: Watched, files: dict[str, str], words: str
) -> None:
    folder = watched.put("odd", files)
    watched.put("ranker", {"model.onnx": "graph"})
    for _ in range(4):
        found = watched.poll()
    assert [event.model for event in found] == ["ranker"]
    assert watched.said == [f"{folder} is left out: {words}"]
    for path in folder.iterdir():
        path.unlink()
    watched.put("odd", {"model.onnx": "graph"})
    watched.poll()
    assert [event.model for event in watched.poll()] == ["odd", "ranker"]
    assert len(watched.said) == 1


def test_links_that_lead_out_are_refused_and_those_that_stay_are_followed(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the machine")
    (tmp_path / "elsewhere").mkdir()
    ranker = watched.put("ranker", {"model.onnx": "graph"})
    watched.put("file").joinpath("model.onnx").symlink_to(tmp_path / "secret")
    watched.put("folder", {"model.onnx": "graph"}).joinpath("inner").symlink_to(tmp_path / "elsewhere")
    watched.put("nowhere", {"model.onnx": "graph"}).joinpath("gone").symlink_to("missing")
    os.mkfifo(watched.put("pipe", {"model.onnx": "graph"}) / "pipe")
    outside = tmp_path / "elsewhere"
    outside.joinpath("model.onnx").write_text("graph")
    outside.joinpath("_READY").touch()
    watched.folder.joinpath("whole").symlink_to(outside)
    watched.put("linked").joinpath("model.onnx").symlink_to(ranker / "model.onnx")
    watched.folder.joinpath("current").symlink_to(ranker)
    watched.poll()
    assert [event.model for event in watched.poll()] == ["current", "linked", "ranker"]
    assert [line.partition(" is left out: ")[2] for line in watched.said] == [
        "model.onnx is a link that leads out of the folder",
        "inner is a link to a folder",
        "gone is a link that leads nowhere",
        "pipe is no file",
        "it is a link that leads out of the folder",
    ]


def test_what_changes_as_it_is_read_is_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = watched.put("ranker", {"model.onnx": "one"})
    entries = watched.digester.entries

    def written_meanwhile(*given: object, **words: object) -> object:
        monkeypatch.undo()
        found = entries(*given, **words)  # type: ignore[arg-type]
        folder.joinpath("model.onnx").write_text("three")
        return found

    watched.poll()
    monkeypatch.setattr(watched.digester, "entries", written_meanwhile)
    assert watched.poll() == []
    assert watched.poller.has_more
    assert watched.poll() == []
    assert len(watched.poll()) == 1


def test_folders_that_begin_with_a_dot_and_files_are_no_models(watched: Watched) -> None:
    watched.put(".staging", {"model.onnx": "graph"})
    watched.folder.joinpath("README").touch()
    watched.put("li\nne", {"model.onnx": "graph"})
    assert watched.poll() == watched.poll() == []
    assert [line.partition(" is left out: ")[2] for line in watched.said] == ["its name cannot be shown"]


def test_a_folder_that_is_away_is_a_fault_that_may_pass(watched: Watched) -> None:
    watched.put("ranker", {"model.onnx": "graph"})
    watched.poll()
    watched.folder.rename(watched.folder.with_name("moved"))
    with pytest.raises(EnvironmentFault, match="cannot be read: No such file") as caught:
        watched.poll()
    assert caught.value.transient
    assert caught.value.remedy
    watched.folder.with_name("moved").rename(watched.folder)
    assert [event.model for event in watched.poll()] == ["ranker"]


def test_links_that_lead_to_each_other_are_left_out_and_hold_nothing_up(watched: Watched) -> None:
    for _ in range(2):
        watched.put("good", {"model.onnx": "x"})
    (watched.folder / "loop").symlink_to("loop")
    watched.put("bad", {"model.onnx": "x"})
    (watched.folder / "bad" / "inner").symlink_to("inner")
    watched.poll()
    assert [event.model for event in watched.poll()] == ["good"]
    assert [words for words in watched.said if "bad is left out" in words]
