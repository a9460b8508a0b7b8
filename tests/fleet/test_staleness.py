"""Why a model is built: everything that decides its result, and nothing that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import ModelSpec
from plansmith.config.target.names import shipped_file
from plansmith.fleet.rebuild_reasons import differences
from plansmith.steps.provenance import tools as compile_tools
from plansmith.steps.provenance.fingerprint import NO_SAY
from plansmith.steps.provenance.tools import SERVER, STANDING_IN
from plansmith.system.gpu_catalog import find_kind

from ..support.fleet import Place

OTHERS: dict[str, Any] = {
    "source": "onnx:other.onnx",
    "engine": "tensorrt",
    "precision": "fp16",
    "data": {"path": "data.txt"},
    "lowering": {"budget": 3},
    "shapes": {"x": "1x3:2x3:4x3"},
    "random_weights": True,
    "trust_remote_code": True,
    "allow_pickle": True,
    "device": "cuda",
    "check_served": True,
    "tolerances": {"y": {"max_relative": 0.1}},
    "tensorrt": {"optimization_level": 5},
    "python": {"torch_compile": True},
    "pipeline": {"input": "text"},
    "triton": {"max_batch_size": 4},
    "task": "fill-mask",
    "inputs": {"x": {"low": 0, "high": 1}},
    "io_dtypes": {"x": "int32"},
    "io_layouts": {"x": "nhwc"},
    "outputs": ["y"],
}
"""For each field of a spec that has a say, another value than the usual one."""

SILENT: dict[str, Any] = {
    "allow_interface_change": True,
    "load_into": ["grpc://127.0.0.1:1"],
    "load_seconds": 3,
    "tritonserver": "elsewhere",
    "shared_cache": "shared",
    "source_override": {"replaces": "onnx:other.onnx"},
    "repository": "../artifacts/repository",
}


def test_every_field_of_a_spec_has_a_say_or_has_none() -> None:
    assert set(OTHERS) | NO_SAY == set(ModelSpec.model_fields)
    assert not set(OTHERS) & NO_SAY
    assert {"name", "target", "artifacts", "publish", "force"} == NO_SAY - set(SILENT), "asked of by tests of their own"


@pytest.mark.parametrize("field", OTHERS)
def test_another_value_that_decides_the_result_is_named_with_the_one_before(place: Place, field: str) -> None:
    (place.specs / "other.onnx").write_bytes(place.graph.read_bytes())
    (place.specs / "data.txt").write_text("a line\n")
    engine = {"engine": field} if field in {"tensorrt", "python"} else {}
    place.publish(place.spec(**engine))
    assert place.why() == ""
    place.spec(**engine, **{field: OTHERS[field]})
    why = place.why()
    assert why.startswith(f"spec: spec: {field}"), why
    assert " -> " in why
    assert "tools: " not in why, "other steps, and what they need, are not new"


@pytest.mark.parametrize("field", SILENT)
def test_what_only_says_how_to_go_about_it_is_no_reason(place: Place, field: str) -> None:
    place.publish(place.spec())
    place.spec(**{field: SILENT[field]})
    assert place.why() == ""


def test_options_of_another_engine_are_no_reason(place: Place) -> None:
    place.publish(place.spec())
    place.spec(tensorrt={"optimization_level": 5}, python={"torch_compile": True})
    assert place.why() == ""


def test_a_model_without_a_version_is_new_and_one_that_is_asked_for_is_forced(place: Place) -> None:
    file = place.spec()
    assert place.why() == "new: there is no version of it yet"
    place.publish(file)
    assert place.why() == ""
    assert place.why(force=True) == "forced: it was asked for (force)"
    place.spec(force=True)
    assert place.why() == "forced: it was asked for (force)"


def test_a_release_that_is_older_than_the_notes_is_built_once(place: Place) -> None:
    file = place.spec()
    place.publish(file, note=False)
    assert place.why() == "new: what version 1 was made from was not noted"
    place.publish(file)
    assert place.why() == ""
    place.publish(file, note=False, content="made again")
    assert place.why() == "new: what version 2 was made from was not noted"


def test_a_note_of_another_form_or_a_damaged_one_says_so(place: Place) -> None:
    place.publish(place.spec())
    note = place.repository.store / "basis" / "one.json"
    fields = json.loads(note.read_text())
    note.write_text(json.dumps(fields | {"schema_version": 99}))
    why = place.why()
    assert why.startswith("new: nobody knows what its newest version was made from: ")
    assert "has form 99, and this plansmith reads form 1" in why
    for damaged in ("{", "[]", "{}", json.dumps(fields | {"tools": 3})):
        note.write_text(damaged)
        assert "basis/one.json cannot be read" in place.why()


def test_a_graph_is_known_by_its_content_and_by_that_of_the_weights_beside_it(place: Place) -> None:
    weights = place.folder / "weights.bin"
    weights.write_bytes(b"1")
    place.publish(place.spec(), weights=("weights.bin",))
    place.graph.touch()
    assert place.why() == ""
    weights.write_bytes(b"2")
    assert place.why() == "source: the files of the model changed"
    weights.write_bytes(b"1")
    assert place.why() == ""
    place.graph.write_bytes(b"another")
    assert place.why() == "source: the files of the model changed"
    weights.unlink()
    assert place.why() == "source: the files of the model changed"
    place.graph.unlink()
    (refused,) = place.plan()
    assert refused.failure is not None
    assert (refused.state, refused.version, refused.failure.exit_code) == ("refused", 1, 3)
    assert str(place.graph) in refused.why


def test_another_source_is_not_looked_for_in_what_belonged_to_the_one_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.folder / "weights.bin").write_bytes(b"1")
    place.publish(place.spec(), weights=("weights.bin",))
    (place.folder / "elsewhere").mkdir()
    other = place.folder / "elsewhere" / "other.onnx"
    other.write_bytes(b"another graph, with all of its weights")
    place.spec(source=f"onnx:{other}")
    assert [reason.cause for reason in place.plan()[0].reasons] == ["spec", "source"]
    asked: list[str] = []

    def newest(repo: str, revision: str | None, *, of: str) -> str:
        asked.append(f"{of} {repo} {revision}")
        return "0" * 40

    monkeypatch.setattr("plansmith.steps.provenance.fingerprint.newest_commit", newest)
    for source, data in (("timm:one", "org/a"), ("timm:two", "org/b")):
        file = place.spec(source=source, data={"dataset": data})
        place.plan(resolve=True)
        known: dict[str, Any] = {
            "hub_id": f"timm/{source}",
            "revision": "1" * 40,
            "data": "refs/convert/parquet@" + "1" * 40,
        }
        place.publish(file, content=source, **known)
    assert asked == ["dataset org/a None", "dataset org/b None"]


def test_of_a_folder_the_files_count_that_a_compile_reads(place: Place) -> None:
    model = place.folder / "bert"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    place.publish(place.spec(source="hf:../bert"))
    for unread in ("notes.md", "entry.json", "modeling.py", "pytorch_model.bin"):
        (model / unread).write_text("not read")
    assert place.why() == ""
    (model / "model.safetensors").write_bytes(b"others")
    assert place.why() == "source: the files of the model changed"
    place.publish(place.spec(name="drawn", source="hf:../bert", random_weights=True))
    (model / "model.safetensors").write_bytes(b"once more")
    assert [one.state for one in place.plan()] == ["fresh", "stale"]
    (model / "config.json").write_text('{"layers": 2}')
    assert [one.why for one in place.plan()] == ["the files of the model changed"] * 2


def test_files_that_options_name_count_by_their_content(place: Place) -> None:
    labels = place.specs / "labels.txt"
    labels.write_text("cat\n")
    place.publish(place.spec(triton={"outputs": {"y": {"label_filename": "labels.txt"}}}))
    assert place.why() == ""
    labels.write_text("dog\n")
    assert place.why().startswith("spec: spec: triton.outputs.y.label_filename labels.txt ")
    labels.unlink()
    assert "labels.txt: No such file or directory" in place.why()


def test_data_count_by_their_content_and_an_entry_point_by_its_code(place: Place) -> None:
    data = place.specs / "data.txt"
    data.write_text("a line\n")
    place.publish(place.spec(data={"path": "data.txt"}))
    assert place.why() == ""
    data.write_text("another\n")
    assert place.why() == "data: the data changed"
    code = place.specs / "given.py"
    code.write_text("def rows(): ...\n")
    place.publish(place.spec(data={"entry_point": "given:rows"}), content="of an entry point")
    assert place.why() == ""
    code.write_text("def rows(): yield {}\n")
    assert place.why() == "data: the code of the data's entry point changed"


def test_a_target_is_known_by_what_it_has_and_not_by_the_words_about_it(place: Place) -> None:
    target = place.specs / "ours.yaml-target.yaml"
    text = shipped_file("local-cpu").read_text()
    target.write_text(text)
    file = place.spec(target=target.name)
    place.publish(file)
    assert place.plan(file)[0].why == "nothing changed"
    target.write_text(text.replace("description: ", "description: ours, "))
    assert place.plan(file)[0].why == "nothing changed"
    target.write_text(text.replace("max_opset: ", "max_opset: 1"))
    (planned,) = place.plan(file)
    assert (planned.target, planned.why) == ("ours.yaml-target", "the description of the target changed")
    target.unlink()
    assert place.plan(file)[0].why.startswith(f"cannot read the target file {target}")


def test_tools_are_told_together_and_those_that_are_not_here_tell_nothing(place: Place) -> None:
    file = place.spec()
    place.publish(file)
    noted = place.repository.basis("one")
    assert noted is not None
    assert {"onnx", "onnxruntime", "code of export", "code of publish"} - set(noted.tools) == {"code of publish"}
    assert not {"torch", "timm", "code of lower", "code of sample", "code of check_served"} & set(noted.tools)
    before = {"onnx": "1.2.3", "numpy": "0.9", "code of export": "x", "code of validate": "y", "gone": "7"}
    place.publish(file, tools={**noted.tools, **before})
    now = noted.tools
    assert place.why() == (
        f"tools: numpy 0.9 -> {now['numpy']}, onnx 1.2.3 -> {now['onnx']};"
        " tools: plansmith's own code changed (export, validate)"
    )


def test_beside_another_spec_tools_are_named_that_changed_and_none_that_are_new_to_it(place: Place) -> None:
    file = place.spec()
    place.publish(file)
    noted = place.repository.basis("one")
    assert noted is not None
    before = {"onnx": "1.2.3", "code of export": "x", "code of compile": "y"}
    place.publish(file, tools=noted.tools | before)
    place.spec(precision="fp16")
    assert place.why() == (
        f"spec: spec: precision fp32 -> fp16; tools: onnx 1.2.3 -> {noted.tools['onnx']};"
        " tools: plansmith's own code changed (export, compile)"
    )
    place.spec(engine="tensorrt")
    spec, tools = place.why().split("; tools: ")
    assert spec.startswith("spec: spec: engine onnxruntime -> tensorrt")
    assert tools == f"onnx 1.2.3 -> {noted.tools['onnx']}", "the steps of another engine are other ones"
    place.publish(place.spec(), tools={name: found for name, found in noted.tools.items() if name != "numpy"})
    place.graph.write_bytes(b"another")
    assert place.why() == "source: the files of the model changed"


def test_a_version_that_is_gone_damaged_or_not_shown_is_made_again(place: Place) -> None:
    file = place.spec()
    release = Path(place.publish(file).release)
    weights = release / "model" / "weights" / "model.onnx.data"
    content = weights.read_bytes()
    weights.unlink()
    assert place.why() == "release: version 1 is damaged (model/weights/model.onnx.data)"
    weights.write_bytes(content[:-1])
    assert place.why() == "release: version 1 is damaged (model/weights/model.onnx.data)"
    weights.write_bytes(content)
    assert place.why() == ""
    link = place.repository.root / "one"
    link.rename(place.folder / "aside")
    assert place.why() == "release: Triton is not shown version 1"
    (place.folder / "aside").rename(link)
    (release / "manifest.json").unlink()
    assert place.why() == "release: version 1 is damaged (manifest.json)"
    release.rename(place.folder / "gone")
    assert place.why() == "release: version 1 is gone"


def test_a_version_that_somebody_took_back_is_not_made_again_for_that(place: Place) -> None:
    file = place.spec()
    place.publish(file)
    place.publish(file, content="worse")
    place.repository.withdraw("one", 2, "rolled back")
    (planned,) = place.plan()
    assert (planned.state, planned.version) == ("fresh", 1)
    place.graph.write_bytes(b"mended")
    assert place.why() == "source: the files of the model changed"


def test_a_destination_that_does_not_have_it_yet_is_named(place: Place) -> None:
    folder = str(place.folder / "store")
    file = place.spec()
    place.publish(file)
    bucket = {"to": "s3://models/prod", "aliases": ["champion"]}
    place.spec(publish=[folder, bucket])
    assert place.why() == f"destination: not yet in {folder}, s3://models/prod as champion"
    place.publish(file, destinations=(folder,))
    assert place.why() == "destination: not yet in s3://models/prod as champion"
    place.publish(file, destinations=("s3://models/prod as champion",))
    assert place.why() == "", "where the same version was published to before, it still is"


def test_a_repository_of_another_target_refuses_the_model(place: Place) -> None:
    place.publish(place.spec())
    place.spec(target="triton-26.03")
    (planned,) = place.plan()
    assert planned.failure is not None
    assert (planned.state, planned.failure.exit_code) == ("refused", 7)
    assert "belongs to target local-cpu" in planned.why
    place.spec(target="a-toaster", repository="../elsewhere")
    (planned,) = place.plan()
    assert planned.failure is not None
    assert (planned.failure.exit_code, planned.failure.error) == (6, "EngineError")


def test_a_target_that_does_not_exist_is_told_before_whose_the_repository_is(place: Place) -> None:
    place.publish(place.spec())
    place.spec(target="triton-99.99")
    (planned,) = place.plan()
    assert planned.failure is not None
    assert (planned.state, planned.failure.exit_code, planned.failure.error) == ("refused", 6, "EngineError")
    assert planned.why.startswith("there is no target 'triton-99.99'; next: did you mean triton-")


def test_planning_writes_nothing_but_the_memo_of_digests(place: Place) -> None:
    place.publish(place.spec())
    place.spec("two")
    before = set(place.folder.rglob("*"))
    assert [one.state for one in place.plan()] == ["fresh", "stale"]
    assert set(place.folder.rglob("*")) == before


def test_machines_with_other_builds_of_a_library_or_with_fewer_of_them_agree(place: Place) -> None:
    file = place.spec()
    place.publish(file)
    noted = place.repository.basis("one")
    assert noted is not None
    place.publish(file, tools=noted.tools | {"onnx": f"{noted.tools['onnx']}+cu130", "numpy": ""})
    assert place.why() == "", "what a compile did without had no part in it"
    without = {name: number for name, number in noted.tools.items() if name != "numpy"}
    place.publish(file, tools=without)
    assert place.why() == f"tools: numpy none -> {noted.tools['numpy']}", "the steps have a use for it now"


def test_the_triton_of_the_last_check_is_known_and_no_stand_in_takes_its_word_back(place: Place) -> None:
    server = place.folder / "triton"
    backend = server / "backends" / "onnxruntime" / "libtriton_onnxruntime.so"
    for path in (server / "bin" / "tritonserver", backend, server / "TRITON_VERSION"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("2.70.0")
    (server / "bin" / "tritonserver").chmod(0o755)
    file = place.spec(check_served=True, tritonserver="../triton")
    place.publish(file)
    noted = place.repository.basis("one")
    assert noted is not None
    assert noted.tools[SERVER] == "Triton 2.70.0, that of Triton 2.70.0"
    (server / "TRITON_VERSION").write_text("2.71.0")
    assert place.why().startswith(f"tools: {SERVER} Triton 2.70.0, that of Triton 2.70.0 -> Triton 2.71.0, ")
    place.publish(file, tools=noted.tools | {SERVER: f"Triton 2.51.0 with ONNX Runtime 1.22.0{STANDING_IN}"})
    assert place.why().startswith(f"tools: {SERVER} Triton 2.51.0 with ONNX Runtime 1.22.0 in place of ")
    then = noted.model_copy(update={"tools": noted.tools | {SERVER: "Triton 2.70.0, that of Triton 2.70.0"}})
    now = noted.model_copy(update={"tools": noted.tools | {SERVER: f"Triton 2.51.0 with ONNX Runtime{STANDING_IN}"}})
    assert list(differences(then, now)) == []
    (server / "bin" / "tritonserver").unlink()
    assert place.why() == "", "a machine without one says nothing about it"


def test_a_plan_for_the_gpu_that_is_here_is_stale_where_that_is_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def have(*names: str) -> None:
        found = tuple(find_kind(name) for name in names)
        monkeypatch.setattr("plansmith.steps.provenance.tools.gpus.visible_gpus", lambda: found)
        compile_tools._kinds_here.cache_clear()

    have("L4", "L4")
    file = place.spec(engine="tensorrt", target="triton-26.03")
    place.publish(file)
    assert place.why() == ""
    have("H200")
    assert place.why() == "tools: GPU kinds NVIDIA L4 -> NVIDIA H200"
    named = place.spec("named", engine="tensorrt", target="triton-26.03", tensorrt={"gpus": ["L4"]})
    place.publish(named)
    have()
    assert [one.state for one in place.plan()] == ["fresh", "fresh"]
    have("H200")
    assert [(one.model, one.state) for one in place.plan()] == [("named", "fresh"), ("one", "stale")]
    compile_tools._kinds_here.cache_clear()
