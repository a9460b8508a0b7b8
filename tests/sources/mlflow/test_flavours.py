"""What is taken of a version, on what MLflow itself wrote for models of its flavours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plansmith.errors import SourceError
from plansmith.sources.mlflow.model_version import FlavorFiles, FlavorOptions, choose, read_model_file
from plansmith.sources.remote_files import RemoteFile

from .written import files_of, flavours_of

PLAIN = FlavorOptions(trust_remote_code=False, allow_pickle=False)


def chosen(name: str, *more: str, wishes: FlavorOptions = PLAIN) -> FlavorFiles:
    files = (*files_of(name), *(RemoteFile(path, 1) for path in more))
    return choose(flavours_of(name), files, wishes, "models:/m/1")


def test_transformers_model_and_tokenizer_share_folder() -> None:
    """A model of Transformers and its tokenizer come into one folder."""
    selection = chosen("transformers")
    assert (selection.scheme, selection.graph) == ("hf", "")
    assert {name: file.path for name, file in selection.files.items()} == {
        "config.json": "model/config.json",
        "model.safetensors": "model/model.safetensors",
        "tokenizer.json": "components/tokenizer/tokenizer.json",
        "tokenizer_config.json": "components/tokenizer/tokenizer_config.json",
    }


def test_model_configuration_beats_processor() -> None:
    """The model's own configuration wins over that of a processor."""
    selection = chosen(
        "transformers", "components/image_processor/config.json", "components/a/preprocessor_config.json"
    )
    assert selection.files["config.json"].path == "model/config.json"
    assert selection.files["preprocessor_config.json"].path == "components/a/preprocessor_config.json"


def test_code_and_pickles_need_permission() -> None:
    """Code and pickles stay where they are unless the spec takes them."""
    more = ("model/modeling_own.py", "model/pytorch_model.bin", "model/optimizer.pt", "components/own/deep/x.json")
    assert set(chosen("transformers", *more).files) == set(chosen("transformers").files)
    selection = chosen("transformers", *more, wishes=FlavorOptions(trust_remote_code=True, allow_pickle=True))
    assert set(selection.files) - set(chosen("transformers").files) == {"modeling_own.py", "pytorch_model.bin"}


def test_onnx_file_brings_its_neighbours() -> None:
    """An ONNX file comes with what lies beside it and without what is about it."""
    selection = chosen("onnx")
    assert (selection.scheme, selection.graph, set(selection.files)) == ("onnx", "model.onnx", {"model.onnx"})
    external = chosen("onnx-external")
    assert external.graph == "model.onnx"
    (weights,) = set(external.files) - {"model.onnx"}
    assert weights.endswith(".data")


def test_sentence_model_keeps_module_folders() -> None:
    """A model of Sentence Transformers keeps the folders of its modules."""
    selection = chosen("sentence_transformers")
    assert selection.scheme == "hf"
    assert {"config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json"} <= set(
        selection.files
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pytorch", "flavour pytorch with a pickle of the whole model: reading a pickle can run any code"),
        ("sklearn", "has the flavour sklearn, which plansmith does not read"),
    ],
)
def test_other_flavours_refused_by_name(name: str, said: str) -> None:
    """Other flavours are refused by name with what to log instead."""
    with pytest.raises(SourceError, match=said) as refused:
        chosen(name, wishes=FlavorOptions(trust_remote_code=True, allow_pickle=False))
    assert "register that" in refused.value.remedy


@pytest.mark.parametrize(("name", "file"), [("pytorch-pt2", "model.pt2"), ("pytorch", "model.pth")])
def test_module_comes_with_mlflow_description(name: str, file: str) -> None:
    """A module comes with what MLflow says of it."""
    selection = chosen(
        name, "data/other.bin", wishes=FlavorOptions(trust_remote_code=False, allow_pickle=file == "model.pth")
    )
    assert (selection.scheme, selection.graph) == ("torch", "")
    assert {to: entry.path for to, entry in selection.files.items()} == {file: f"data/{file}", "MLmodel": "MLmodel"}


def test_weightless_model_says_where() -> None:
    """A model that was logged without its weights says where they are."""
    flavour = flavours_of("transformers")["transformers"] | {
        "source_model_name": "org/model",
        "source_model_revision": "f" * 40,
    }
    del flavour["model_binary"]
    with pytest.raises(SourceError, match="holds no weights") as refused:
        choose({"transformers": flavour}, files_of("transformers"), PLAIN, "models:/m/1")
    assert refused.value.remedy.startswith(f"write hf:org/model@{'f' * 40}, ")
    with pytest.raises(SourceError) as local:
        choose({"transformers": flavour | {"local_base_model_path": "/srv/m"}}, (), PLAIN, "models:/m/1")
    assert "hf:" not in local.value.remedy


def test_adapter_refused_with_remedy() -> None:
    """An adapter is refused with what makes a whole model of it."""
    flavour = flavours_of("transformers")["transformers"] | {"peft_adaptor": "peft"}
    with pytest.raises(SourceError, match="adapter alone") as refused:
        choose({"transformers": flavour}, files_of("transformers"), PLAIN, "models:/m/1")
    assert "merge_and_unload" in refused.value.remedy


@pytest.mark.parametrize("root", ["../model", "/etc", "model/..", "nowhere", "components/tokenizer"])
def test_foreign_folder_gives_nothing(root: str) -> None:
    """A folder that is none of the version's own gives nothing."""
    flavour = flavours_of("transformers")["transformers"] | {"model_binary": root}
    with pytest.raises(SourceError, match=r"config\.json"):
        choose({"transformers": flavour}, files_of("transformers"), PLAIN, "models:/m/1")


def test_missing_graph_told() -> None:
    """A graph that is not there is told."""
    files = tuple(replace(file, path=f"deep/{file.path}") for file in files_of("onnx"))
    with pytest.raises(SourceError, match=r"has no model\.onnx"):
        choose(flavours_of("onnx"), files, PLAIN, "models:/m/1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"flavors:",
        b"flavors: [transformers]",
        b"flavors: {transformers: 3}",
        b"- a",
        b"\xff\xfe",
        b"a: [",
        b"!!python/object/apply:os.system [echo]",
        b"[" * 100_000,
    ],
)
def test_damaged_file_told_runs_nothing(content: bytes) -> None:
    """A damaged file is told and runs nothing."""
    with pytest.raises(SourceError, match="is damaged"):
        read_model_file(content, "models:/m/1")
