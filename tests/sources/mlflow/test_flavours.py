"""What is taken of a version, on what MLflow itself wrote for models of its flavours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plansmith.errors import SourceError
from plansmith.sources.mlflow.flavors import FlavorFiles, FlavorOptions, choose, read_model_file
from plansmith.sources.remote_files import RemoteFile

from .written import files_of, flavours_of

PLAIN = FlavorOptions(trust_remote_code=False, allow_pickle=False)


def chosen(name: str, *more: str, wishes: FlavorOptions = PLAIN) -> FlavorFiles:
    files = (*files_of(name), *(RemoteFile(path, 1) for path in more))
    return choose(flavours_of(name), files, wishes, "models:/m/1")


def test_a_model_of_transformers_and_its_tokenizer_come_into_one_folder() -> None:
    kept = chosen("transformers")
    assert (kept.scheme, kept.graph) == ("hf", "")
    assert {name: file.path for name, file in kept.files.items()} == {
        "config.json": "model/config.json",
        "model.safetensors": "model/model.safetensors",
        "tokenizer.json": "components/tokenizer/tokenizer.json",
        "tokenizer_config.json": "components/tokenizer/tokenizer_config.json",
    }


def test_the_models_own_configuration_wins_over_that_of_a_processor() -> None:
    kept = chosen("transformers", "components/image_processor/config.json", "components/a/preprocessor_config.json")
    assert kept.files["config.json"].path == "model/config.json"
    assert kept.files["preprocessor_config.json"].path == "components/a/preprocessor_config.json"


def test_code_and_pickles_stay_where_they_are_unless_the_spec_takes_them() -> None:
    more = ("model/modeling_own.py", "model/pytorch_model.bin", "model/optimizer.pt", "components/own/deep/x.json")
    assert set(chosen("transformers", *more).files) == set(chosen("transformers").files)
    taken = chosen("transformers", *more, wishes=FlavorOptions(trust_remote_code=True, allow_pickle=True))
    assert set(taken.files) - set(chosen("transformers").files) == {"modeling_own.py", "pytorch_model.bin"}


def test_an_onnx_file_comes_with_what_lies_beside_it_and_without_what_is_about_it() -> None:
    kept = chosen("onnx")
    assert (kept.scheme, kept.graph, set(kept.files)) == ("onnx", "model.onnx", {"model.onnx"})
    external = chosen("onnx-external")
    assert external.graph == "model.onnx"
    (weights,) = set(external.files) - {"model.onnx"}
    assert weights.endswith(".data")


def test_a_model_of_sentence_transformers_keeps_the_folders_of_its_modules() -> None:
    kept = chosen("sentence_transformers")
    assert kept.scheme == "hf"
    assert {"config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json"} <= set(
        kept.files
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pytorch", "flavour pytorch with a pickle of the whole model: reading a pickle can run any code"),
        ("sklearn", "has the flavour sklearn, which plansmith does not read"),
    ],
)
def test_other_flavours_are_refused_by_name_with_what_to_log_instead(name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as refused:
        chosen(name, wishes=FlavorOptions(trust_remote_code=True, allow_pickle=False))
    assert "register that" in refused.value.remedy


@pytest.mark.parametrize(("name", "file"), [("pytorch-pt2", "model.pt2"), ("pytorch", "model.pth")])
def test_a_module_comes_with_what_mlflow_says_of_it(name: str, file: str) -> None:
    kept = chosen(
        name, "data/other.bin", wishes=FlavorOptions(trust_remote_code=False, allow_pickle=file == "model.pth")
    )
    assert (kept.scheme, kept.graph) == ("torch", "")
    assert {to: one.path for to, one in kept.files.items()} == {file: f"data/{file}", "MLmodel": "MLmodel"}


def test_a_model_that_was_logged_without_its_weights_says_where_they_are() -> None:
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


def test_an_adapter_is_refused_with_what_makes_a_whole_model_of_it() -> None:
    flavour = flavours_of("transformers")["transformers"] | {"peft_adaptor": "peft"}
    with pytest.raises(SourceError, match="adapter alone") as refused:
        choose({"transformers": flavour}, files_of("transformers"), PLAIN, "models:/m/1")
    assert "merge_and_unload" in refused.value.remedy


@pytest.mark.parametrize("root", ["../model", "/etc", "model/..", "nowhere", "components/tokenizer"])
def test_a_folder_that_is_none_of_the_versions_own_gives_nothing(root: str) -> None:
    flavour = flavours_of("transformers")["transformers"] | {"model_binary": root}
    with pytest.raises(SourceError, match=r"config\.json"):
        choose({"transformers": flavour}, files_of("transformers"), PLAIN, "models:/m/1")


def test_a_graph_that_is_not_there_is_said() -> None:
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
def test_a_damaged_file_is_said_and_runs_nothing(content: bytes) -> None:
    with pytest.raises(SourceError, match="is damaged"):
        read_model_file(content, "models:/m/1")
