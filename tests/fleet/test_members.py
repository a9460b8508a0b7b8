"""Which specs a fleet has: folders, files, links, the same file twice, one name twice, and files that are no specs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.errors import UsageError
from plansmith.fleet.text import plan_rows
from plansmith.triton.repository import nesting

from ..support.fleet import Place


def names(place: Place, *places: Path) -> list[str]:
    return [one.model or f"({Path(one.file).name})" for one in place.plan(*places)]


def test_folders_are_searched_at_any_depth_and_what_is_hidden_is_left_out(place: Place) -> None:
    place.spec("b")
    place.spec("a").rename(place.specs / "a.yml")
    for name in ("deep/er/c.yaml", ".hidden/d.yaml", ".e.yaml", "notes.txt", "deep/f.yaml.orig"):
        place.write(name, f"source: onnx:{place.graph}\nname: {Path(name).stem}\n")
    assert names(place) == ["a", "b", "c"]
    (planned,) = place.plan(place.specs / "deep")
    assert (planned.file, planned.target) == (str(place.specs / "deep" / "er" / "c.yaml"), "local-cpu")


def test_a_file_is_one_member_however_often_and_by_whatever_name_it_is_given(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place.spec("a")
    (place.specs / "link.yaml").symlink_to(file)
    (place.specs / "round").symlink_to(place.specs)
    (place.folder / "others").symlink_to(place.specs)
    monkeypatch.chdir(place.folder)
    assert names(place) == ["a"]
    assert names(place, file, Path("specs/a.yaml"), place.specs, place.folder / "others") == ["a"]
    assert place.plan(Path("specs/a.yaml"))[0].file == str(file)


def test_a_model_for_several_targets_is_several_members(place: Place) -> None:
    place.spec("a", target=["local-cpu", "triton-26.03"])
    planned = place.plan()
    assert [(one.model, one.target, one.state) for one in planned] == [
        ("a", "local-cpu", "stale"),
        ("a", "triton-26.03", "stale"),
    ]


def test_values_of_the_command_line_win_over_every_spec(place: Place) -> None:
    place.publish(place.spec("a"))
    place.publish(place.spec("b", precision="fp16"))
    first, second = place.plan(overrides={"precision": "fp16"})
    assert first.why == "spec: precision fp32 -> fp16", "and no tool that lowering takes besides"
    assert second.state == "fresh"


def test_a_place_that_holds_no_spec_is_refused_and_the_others_go_on(place: Place) -> None:
    place.spec("a")
    empty, gone = place.folder / "empty", place.folder / "gone.yaml"
    (empty / "deeper").mkdir(parents=True)
    (empty / "deeper" / "read.me").write_text("no spec")
    planned = place.plan(empty, gone, place.specs)
    assert [(one.model, one.state, one.file) for one in planned] == [
        ("", "refused", str(empty)),
        ("", "refused", str(gone)),
        ("a", "stale", str(place.specs / "a.yaml")),
    ]
    assert planned[0].why == (f"{empty} holds no spec; next: put one there (.yaml or .yml), or name another folder")
    assert planned[1].why.startswith(f"there is no spec and no folder {gone}; next: ")
    assert [one.failure.exit_code for one in planned if one.failure] == [2, 2]


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
def test_a_file_that_is_no_spec_or_names_no_model_is_refused_by_itself(place: Place, text: str, says: str) -> None:
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
def test_a_torn_file_is_told_in_one_sentence_with_line_and_column(
    place: Place, text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = place.write("torn.yaml", text)
    (refused,) = planned = place.plan()
    assert "\n" not in refused.why
    assert refused.why.startswith(f"{torn} is not YAML: {says}")
    assert refused.why.endswith("; next: mend the file")
    monkeypatch.chdir("/")
    (row,) = plan_rows(planned)
    assert row["why"] == refused.why.removesuffix("; next: mend the file")


def test_two_specs_with_one_name_in_one_repository_are_both_refused_and_the_others_go_on(place: Place) -> None:
    first, second = place.spec("a"), place.spec("b")
    place.write("other.yaml", first.read_text())
    planned = {Path(one.file).name: one for one in place.plan()}
    assert [(name, one.state) for name, one in planned.items()] == [
        ("a.yaml", "refused"),
        ("b.yaml", "stale"),
        ("other.yaml", "refused"),
    ]
    why = planned["a.yaml"].why
    assert why == planned["other.yaml"].why
    assert f"{first} and {place.specs / 'other.yaml'} each have a model 'a', in the same repository, " in why
    assert "give each a `name` or a `repository` of its own" in why
    place.write("other.yaml", first.read_text() + "repository: elsewhere\n")
    assert {one.state for one in place.plan(first, second, place.specs / "other.yaml")} == {"stale"}


def test_models_are_picked_by_name_and_a_name_that_nobody_has_is_refused(place: Place) -> None:
    for name in "abc":
        place.spec(name)
    place.write("bad.yaml", "{")
    assert [one.model for one in place.plan(models=["c", "a"])] == ["a", "c"]
    with pytest.raises(UsageError, match="no spec has a model 'x', 'y'") as refused:
        place.plan(models=["x", "a", "y"])
    assert refused.value.remedy == f"there are a, b, c; 1 file(s) cannot be read, such as {place.specs / 'bad.yaml'}"
    with pytest.raises(UsageError) as refused:
        place.plan(place.specs / "bad.yaml", models=["x"])
    assert refused.value.remedy.startswith("there is none; 1 file(s)")


def test_a_name_that_is_refused_twice_is_no_matter_to_those_who_did_not_pick_it(place: Place) -> None:
    file = place.spec("a")
    place.spec("b")
    place.write("again.yaml", file.read_text())
    assert [(one.model, one.state) for one in place.plan(models=["b"])] == [("b", "stale")]


def test_a_place_that_cannot_be_read_is_refused_and_the_others_go_on(place: Place) -> None:
    place.spec("a")
    too_long = place.folder / ("x" * 300)
    place.spec("b", source=f"onnx:{'y' * 300}.onnx")
    long, wrong, *others = place.plan(too_long, place.specs / "b.yaml", place.specs / "a.yaml")
    assert [(one.model, one.state) for one in others] == [("a", "stale")]
    assert (long.state, long.file, wrong.state) == ("refused", str(too_long), "refused")
    assert long.why.startswith(f"{too_long} cannot be read: File name too long; next: ")
    assert "File name too long" in wrong.why


def test_a_folder_that_cannot_be_read_is_refused_and_those_beside_it_are_searched(place: Place) -> None:
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


def test_where_models_are_named_what_cannot_be_read_is_told(place: Place) -> None:
    place.spec("a")
    bad = place.write("bad.yaml", "{")
    said: list[str] = []
    gone = place.folder / "gone"
    assert [one.model for one in place.plan(place.specs, gone, models=["a"], tell=said.append)] == ["a"]
    assert len(said) == 2
    assert said[0].startswith(f"{bad} is not YAML")
    assert said[1].startswith(f"there is no spec and no folder {gone}")
    assert all(one.endswith("whether it has one of the models that are named, nobody knows") for one in said)


def test_an_unknown_name_can_be_refused_by_itself(place: Place) -> None:
    place.spec("a")
    known, unknown = place.plan(models=["x", "a"], refuse_unknown=True)
    assert (known.model, known.state) == ("a", "stale")
    assert (unknown.model, unknown.state, unknown.file) == ("x", "refused", str(place.specs))
    assert unknown.why == "no spec has a model 'x'; next: there are a"


def test_the_repositories_of_a_fleet_are_searched_for_others_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        place.spec(name)
    searched: list[Path] = []
    real = nesting.repositories_in

    def search(folder: Path) -> list[Path]:
        searched.append(folder)
        return real(folder)

    monkeypatch.setattr(nesting, "repositories_in", search)
    assert [one.state for one in place.plan()] == ["stale"] * 3
    assert searched == [place.repository.root]
