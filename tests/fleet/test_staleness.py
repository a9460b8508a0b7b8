"""Why a model is built: everything that decides its result, and nothing that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import ModelSpec
from plansmith.config.target_names import shipped_file
from plansmith.fleet.plan import differences
from plansmith.steps.provenance import fingerprint as compile_tools
from plansmith.steps.provenance.fingerprint import NO_SAY, SERVER, STANDING_IN
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
    "isolate": False,
    "load_into": ["grpc://127.0.0.1:1"],
    "load_seconds": 3,
    "tritonserver": "elsewhere",
    "shared_cache": "shared",
    "source_override": {"replaces": "onnx:graph.onnx", "is_tracked": True},
    "repository": "../artifacts/repository",
}


def test_spec_fields_are_classified() -> None:
    """Every field of a spec has a say or has none."""
    assert set(OTHERS) | NO_SAY == set(ModelSpec.model_fields)
    assert not set(OTHERS) & NO_SAY
    assert {"name", "target", "artifacts", "publish", "force"} == NO_SAY - set(SILENT), "asked of by tests of their own"


@pytest.mark.parametrize("field", OTHERS)
def test_deciding_value_named_with_previous(place: Place, field: str) -> None:
    """Another value that decides the result is named with the one before."""
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
def test_manner_is_no_reason(place: Place, field: str) -> None:
    """What only says how to go about a compile is no reason."""
    place.publish(place.spec())
    place.spec(**{field: SILENT[field]})
    assert place.why() == ""


def test_another_path_to_the_source_is_no_reason(place: Place) -> None:
    """A source counts by its name and content, wherever the path to it starts."""
    place.publish(place.spec())
    moved = place.folder / "moved"
    moved.mkdir()
    place.spec(source="onnx:../graph.onnx")
    assert place.why() == ""
    place.graph = place.graph.rename(moved / "graph.onnx")
    place.spec(source="onnx:../moved/graph.onnx")
    assert place.why() == ""
    place.graph.write_bytes(b"another graph")
    assert place.why() == "source: the files of the model changed"


def test_other_engine_options_no_reason(place: Place) -> None:
    """Options of another engine are no reason."""
    place.publish(place.spec())
    place.spec(tensorrt={"optimization_level": 5}, python={"torch_compile": True})
    assert place.why() == ""


def test_missing_version_is_new(place: Place) -> None:
    """A model without a version is new, and one that is asked for is forced."""
    file = place.spec()
    assert place.why() == "new: there is no version of it yet"
    place.publish(file)
    assert place.why() == ""
    assert place.why(force=True) == "forced: it was asked for (force)"
    place.spec(force=True)
    assert place.why() == "forced: it was asked for (force)"


def test_release_before_notes_built_once(place: Place) -> None:
    """A release that is older than the notes is built once."""
    file = place.spec()
    place.publish(file, note=False)
    assert place.why() == "new: what version 1 was made from was not noted"
    place.publish(file)
    assert place.why() == ""
    place.publish(file, note=False, content="made again")
    assert place.why() == "new: what version 2 was made from was not noted"


def test_damaged_note_says_so(place: Place) -> None:
    """A note of another form or a damaged one says so."""
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


def test_graph_known_by_content(place: Place) -> None:
    """A graph is known by its content and by that of the weights beside it."""
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


def test_previous_files_not_searched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another source is not looked for in what belonged to the one before."""
    (place.folder / "weights.bin").write_bytes(b"1")
    place.publish(place.spec(), weights=("weights.bin",))
    (place.folder / "elsewhere").mkdir()
    replacement = place.folder / "elsewhere" / "other.onnx"
    replacement.write_bytes(b"another graph, with all of its weights")
    place.spec(source=f"onnx:{replacement}")
    assert [reason.cause for reason in place.plan()[0].reasons] == ["spec", "source"]
    calls: list[str] = []

    def newest(repo: str, revision: str | None, *, of: str) -> str:
        calls.append(f"{of} {repo} {revision}")
        return "0" * 40

    monkeypatch.setattr("plansmith.sources.hub.newest_commit", newest)
    for source, data in (("timm:one", "org/a"), ("timm:two", "org/b")):
        file = place.spec(source=source, data={"dataset": data})
        place.plan(resolve=True)
        fields: dict[str, Any] = {
            "hub_id": f"timm/{source}",
            "revision": "1" * 40,
            "data": "refs/convert/parquet@" + "1" * 40,
        }
        place.publish(file, content=source, **fields)
    assert calls == ["dataset org/a None", "dataset org/b None"]


def test_read_files_of_folder_count(place: Place) -> None:
    """Of a folder, the files that a compile reads count."""
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
    assert [member.state for member in place.plan()] == ["fresh", "stale"]
    (model / "config.json").write_text('{"layers": 2}')
    assert [member.why for member in place.plan()] == ["the files of the model changed"] * 2


def test_option_files_count_by_content(place: Place) -> None:
    """Files that options name count by their content."""
    labels = place.specs / "labels.txt"
    labels.write_text("cat\n")
    place.publish(place.spec(triton={"outputs": {"y": {"label_filename": "labels.txt"}}}))
    assert place.why() == ""
    labels.write_text("dog\n")
    assert place.why().startswith("spec: spec: triton.outputs.y.label_filename labels.txt ")
    labels.unlink()
    assert "labels.txt: No such file or directory" in place.why()


def test_data_count_by_content(place: Place) -> None:
    """Data count by their content and an entry point by its code."""
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


def test_target_known_by_its_facts(place: Place) -> None:
    """A target is known by what it has and not by the words about it."""
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


def test_missing_tools_tell_nothing(place: Place) -> None:
    """Tools are told together and those that are not here tell nothing."""
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


def test_only_changed_tools_are_named(place: Place) -> None:
    """Beside another spec, tools that changed are named, and none that are new to it."""
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
    place.publish(place.spec(), tools={name: version for name, version in noted.tools.items() if name != "numpy"})
    place.graph.write_bytes(b"another")
    assert place.why() == "source: the files of the model changed"


def test_damaged_version_made_again(place: Place) -> None:
    """A version that is gone, damaged or not shown is made again."""
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


def test_withdrawn_version_not_made_again(place: Place) -> None:
    """A version that somebody took back is not made again for that."""
    file = place.spec()
    place.publish(file)
    place.publish(file, content="worse")
    place.repository.withdraw("one", 2, "rolled back")
    (planned,) = place.plan()
    assert (planned.state, planned.version) == ("fresh", 1)
    place.graph.write_bytes(b"mended")
    assert place.why() == "source: the files of the model changed"


def test_lacking_destination_is_named(place: Place) -> None:
    """A destination that does not have it yet is named."""
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


def test_other_targets_repository_refuses(place: Place) -> None:
    """A repository of another target refuses the model."""
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


def test_missing_target_told_first(place: Place) -> None:
    """A target that does not exist is told before whose the repository is."""
    place.publish(place.spec())
    place.spec(target="triton-99.99")
    (planned,) = place.plan()
    assert planned.failure is not None
    assert (planned.state, planned.failure.exit_code, planned.failure.error) == ("refused", 6, "EngineError")
    assert planned.why.startswith("there is no target 'triton-99.99'; next: did you mean triton-")


def test_planning_writes_only_memo(place: Place) -> None:
    """Planning writes nothing except the memo of digests."""
    place.publish(place.spec())
    place.spec("two")
    before = set(place.folder.rglob("*"))
    assert [member.state for member in place.plan()] == ["fresh", "stale"]
    assert set(place.folder.rglob("*")) == before


def test_different_builds_agree(place: Place) -> None:
    """Machines with other builds of a library or with fewer of them agree."""
    file = place.spec()
    place.publish(file)
    noted = place.repository.basis("one")
    assert noted is not None
    place.publish(file, tools=noted.tools | {"onnx": f"{noted.tools['onnx']}+cu130", "numpy": ""})
    assert place.why() == "", "what a compile did without had no part in it"
    without = {name: number for name, number in noted.tools.items() if name != "numpy"}
    place.publish(file, tools=without)
    assert place.why() == f"tools: numpy none -> {noted.tools['numpy']}", "the steps have a use for it now"


def test_last_triton_stays_known(place: Place) -> None:
    """The Triton of the last check is known, and no stand-in takes its word back."""
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


def test_plan_for_other_gpu_is_stale(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for the GPU that is here is stale where that is another."""

    def have(*names: str) -> None:
        gpus = tuple(find_kind(name) for name in names)
        monkeypatch.setattr("plansmith.system.gpus.visible_gpus", lambda: gpus)
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
    assert [member.state for member in place.plan()] == ["fresh", "fresh"]
    have("H200")
    assert [(member.model, member.state) for member in place.plan()] == [("named", "fresh"), ("one", "stale")]
    compile_tools._kinds_here.cache_clear()
