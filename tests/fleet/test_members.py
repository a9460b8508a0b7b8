"""Which specs a fleet has: folders, files, links, the same file twice, one name twice, and files that are no specs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.errors import UsageError
from plansmith.fleet.records import plan_rows
from plansmith.triton.repository import ensembles

from ..support.fleet import Place


def names(place: Place, *places: Path) -> list[str]:
    return [member.model or f"({Path(member.file).name})" for member in place.plan(*places)]


def test_folders_searched_at_any_depth(place: Place) -> None:
    """Folders are searched at any depth and what is hidden is left out."""
    place.spec("b")
    place.spec("a").rename(place.specs / "a.yml")
    for name in ("deep/er/c.yaml", ".hidden/d.yaml", ".e.yaml", "notes.txt", "deep/f.yaml.orig"):
        place.write(name, f"source: onnx:{place.graph}\nname: {Path(name).stem}\n")
    assert names(place) == ["a", "b", "c"]
    (planned,) = place.plan(place.specs / "deep")
    assert (planned.file, planned.target) == (str(place.specs / "deep" / "er" / "c.yaml"), "local-cpu")


def test_file_is_one_member(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is one member however often and by whatever name it is given."""
    file = place.spec("a")
    (place.specs / "link.yaml").symlink_to(file)
    (place.specs / "round").symlink_to(place.specs)
    (place.folder / "others").symlink_to(place.specs)
    monkeypatch.chdir(place.folder)
    assert names(place) == ["a"]
    assert names(place, file, Path("specs/a.yaml"), place.specs, place.folder / "others") == ["a"]
    assert place.plan(Path("specs/a.yaml"))[0].file == str(file)


def test_targets_make_several_members(place: Place) -> None:
    """A model for several targets is several members."""
    place.spec("a", target=["local-cpu", "triton-26.03"])
    planned = place.plan()
    assert [(member.model, member.target, member.state) for member in planned] == [
        ("a", "local-cpu", "stale"),
        ("a", "triton-26.03", "stale"),
    ]


def test_command_line_values_win(place: Place) -> None:
    """Values of the command line win over every spec."""
    place.publish(place.spec("a"))
    place.publish(place.spec("b", precision="fp16"))
    first, second = place.plan(overrides={"precision": "fp16"})
    assert first.why == "spec: precision fp32 -> fp16", "and no tool that lowering takes besides"
    assert second.state == "fresh"


def test_place_without_specs_refused(place: Place) -> None:
    """A place that holds no spec is refused and the others go on."""
    place.spec("a")
    empty, missing = place.folder / "empty", place.folder / "gone.yaml"
    (empty / "deeper").mkdir(parents=True)
    (empty / "deeper" / "read.me").write_text("no spec")
    planned = place.plan(empty, missing, place.specs)
    assert [(member.model, member.state, member.file) for member in planned] == [
        ("", "refused", str(empty)),
        ("", "refused", str(missing)),
        ("a", "stale", str(place.specs / "a.yaml")),
    ]
    assert planned[0].why == (f"{empty} holds no spec; next: put one there (.yaml or .yml), or name another folder")
    assert planned[1].why.startswith(f"there is no spec and no folder {missing}; next: ")
    assert [member.failure.exit_code for member in planned if member.failure] == [2, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a spec is a mapping"),
        ("- a\n", "a spec is a mapping"),
        ("{", "is not YAML"),
        ("service: {}\n", "'source' is missing"),
        ("source: onnx:x\nprecison: int8\n", "'precison'"),
        ("source: onnx:gone.onnx\n", "there is no file"),
        ("source: hf:./gone\n", "there is no directory"),
        ("models: []\n", "'models' is a list of models"),
    ],
)
def test_wrong_file_refused_alone(place: Place, text: str, says: str) -> None:
    """A file that is no spec or names no model is refused by itself."""
    place.spec("a")
    bad = place.write("bad.yaml", text)
    (first, refused) = place.plan()
    assert (first.model, first.state) == ("a", "stale")
    assert refused.failure is not None
    assert (refused.state, refused.file) == ("refused", str(bad))
    assert says in refused.why
    assert "; next: " in refused.why


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "source: onnx:x\nshapes: [1\nname: b\n",
            "line 3, column 5: expected ',' or ']', but got ':' (while parsing a flow sequence in line 2, column 9)",
        ),
        (
            'source: "hf\n',
            "line 2, column 1: found unexpected end of stream (while scanning a quoted scalar in line 1, column 9)",
        ),
        ("source: x\n name: y\n", "line 2, column 6: mapping values are not allowed here"),
        ("a: \tb\n\tc: 1\n", "line 1, column 4: found character '\\t' that cannot start any token"),
        ("a: \x07\n", "unacceptable character #x0007: special characters are not allowed at position 3"),
        ("name: 2026-13-45\n", "month must be in 1..12"),
    ],
)
def test_torn_file_told_with_line(place: Place, text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn file is told in one sentence with line and column."""
    torn = place.write("torn.yaml", text)
    (refused,) = planned = place.plan()
    assert "\n" not in refused.why
    assert refused.why.startswith(f"{torn} is not YAML: {says}")
    assert refused.why.endswith("; next: mend the file")
    monkeypatch.chdir("/")
    (row,) = plan_rows(planned)
    assert row["why"] == refused.why.removesuffix("; next: mend the file")


def test_same_name_specs_both_refused(place: Place) -> None:
    """Two specs with one name in one repository are both refused, and the others go on."""
    first, second = place.spec("a"), place.spec("b")
    place.write("other.yaml", first.read_text())
    planned = {Path(member.file).name: member for member in place.plan()}
    assert [(name, member.state) for name, member in planned.items()] == [
        ("a.yaml", "refused"),
        ("b.yaml", "stale"),
        ("other.yaml", "refused"),
    ]
    why = planned["a.yaml"].why
    assert why == planned["other.yaml"].why
    assert f"{first} and {place.specs / 'other.yaml'} each have a model 'a', in the same repository, " in why
    assert "give each a `name` or a `repository` of its own" in why
    place.write("other.yaml", first.read_text() + "repository: elsewhere\n")
    assert {member.state for member in place.plan(first, second, place.specs / "other.yaml")} == {"stale"}


def test_models_picked_by_name(place: Place) -> None:
    """Models are picked by name, and a name that nobody has is refused."""
    for name in "abc":
        place.spec(name)
    place.write("bad.yaml", "{")
    assert [member.model for member in place.plan(models=["c", "a"])] == ["a", "c"]
    with pytest.raises(UsageError, match="no spec has a model 'x', 'y'") as refused:
        place.plan(models=["x", "a", "y"])
    assert refused.value.remedy == f"choose from: a, b, c; 1 file cannot be read, such as {place.specs / 'bad.yaml'}"
    with pytest.raises(UsageError) as refused:
        place.plan(place.specs / "bad.yaml", models=["x"])
    assert refused.value.remedy.startswith("there is none; 1 file cannot")


def test_unpicked_refusal_does_not_matter(place: Place) -> None:
    """A name that is refused twice is no matter to those who did not pick it."""
    file = place.spec("a")
    place.spec("b")
    place.write("again.yaml", file.read_text())
    assert [(member.model, member.state) for member in place.plan(models=["b"])] == [("b", "stale")]


def test_unreadable_place_refused(place: Place) -> None:
    """A place that cannot be read is refused and the others go on."""
    place.spec("a")
    too_long = place.folder / ("x" * 300)
    place.spec("b", source=f"onnx:{'y' * 300}.onnx")
    long, wrong, *others = place.plan(too_long, place.specs / "b.yaml", place.specs / "a.yaml")
    assert [(member.model, member.state) for member in others] == [("a", "stale")]
    assert (long.state, long.file, wrong.state) == ("refused", str(too_long), "refused")
    assert long.why.startswith(f"{too_long} cannot be read: File name too long; next: ")
    assert "File name too long" in wrong.why


def test_unreadable_folder_refused(place: Place) -> None:
    """A folder that cannot be read is refused and those beside it are searched."""
    place.spec("a")
    inner, depth = os.open(place.specs, os.O_RDONLY), 20
    for _ in range(depth):  # deeper than a path can say
        os.mkdir("d" * 250, dir_fd=inner)
        outer, inner = inner, os.open("d" * 250, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    refused, a = place.plan()
    assert (a.model, a.state) == ("a", "stale")
    assert refused.state == "refused"
    assert " cannot be read: File name too long" in refused.why
    assert refused.file.startswith(str(place.specs / ("d" * 250)))


def test_named_models_tell_unreadable_files(place: Place) -> None:
    """Where models are named, what cannot be read is told."""
    place.spec("a")
    bad = place.write("bad.yaml", "{")
    messages: list[str] = []
    missing = place.folder / "gone"
    assert [item.model for item in place.plan(place.specs, missing, models=["a"], tell=messages.append)] == ["a"]
    assert len(messages) == 2
    assert messages[0].startswith(f"{bad} is not YAML")
    assert messages[1].startswith(f"there is no spec and no folder {missing}")
    assert all(item.endswith("whether it has one of the models that are named, nobody knows") for item in messages)


def test_unknown_name_refused_alone(place: Place) -> None:
    """An unknown name can be refused by itself."""
    place.spec("a")
    known, unknown = place.plan(models=["x", "a"], refuse_unknown=True)
    assert (known.model, known.state) == ("a", "stale")
    assert (unknown.model, unknown.state, unknown.file) == ("x", "refused", str(place.specs))
    assert unknown.why == "no spec has a model 'x'; next: choose from: a"


def test_fleet_repositories_searched_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repositories of a fleet are searched for others once."""
    for name in "abc":
        place.spec(name)
    searched: list[Path] = []
    real = ensembles.repositories_in

    def search(folder: Path) -> list[Path]:
        searched.append(folder)
        return real(folder)

    monkeypatch.setattr(ensembles, "repositories_in", search)
    assert [member.state for member in place.plan()] == ["stale"] * 3
    assert searched == [place.repository.root]
