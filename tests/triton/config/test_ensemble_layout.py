"""Several models in one release: what is shared, what tensors are called, and what Triton is told of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EngineError, UsageError
from plansmith.records.model import Tensor
from plansmith.records.pipeline import Part, Pipeline
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Interface, Package
from plansmith.system.digest import Digester
from plansmith.triton.config.ensemble import (
    Branch,
    Step,
    chains_of,
    member_folder,
    members_of,
    part_name,
    write_ensemble,
)
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.config.script import MAIN, build_script_package
from plansmith.triton.repository.ensembles import members_of_script

MODEL = "top"


def tensor(name: str, dtype: str = "int64", width: int | str = 1) -> Tensor:
    return Tensor(name=name, dtype=dtype, dims=("batch", width))


TEXT, IDS, MASK = tensor("text", "string"), tensor("ids", width="sequence"), tensor("mask", width="sequence")
LOGITS, LABEL, SPANS = tensor("logits", "float32", 3), tensor("label", "string"), tensor("spans")


class Release:
    """A release that is laid out from models whose parts are a file each.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"

    def branch(
        self,
        name: str = "",
        *,
        tokenizer: str = "words",
        weights: str = "",
        largest: int = 8,
        raw: Tensor = TEXT,
        outputs: Sequence[Tensor] = (LABEL,),
        arguments: Sequence[str] = (),
    ) -> Branch:
        """A model with a tokenizer before and labels behind it.

        Args:
            name: of the model.
            tokenizer: what the file of the tokenizer holds.
            weights: what the file of the model holds; its name when empty.
            largest: batch.
            raw: what clients send.
            outputs: what they read.
            arguments: of the server.
        """
        text = self._part(name, "text", tokenizer, (raw,), (IDS, MASK, SPANS))
        labels = self._part(name, "labels", f"labels of {name}", (LOGITS,), (LABEL,))
        around: dict[str, Any] = {"input": "text", "output": "labels", "cases": (), "source": "a library"}
        pipeline = Pipeline(**around, before=(text,), after=(labels,), inputs=(raw,), outputs=tuple(outputs))
        place = self.out / member_folder(part_name(name, "model"))
        (place / MODEL_FOLDER).mkdir(parents=True)
        (place / MODEL_FOLDER / "model.onnx").write_text(weights or name)
        (place / CONFIG_FILE).write_text(f'name: "{MODEL}" backend: "onnxruntime" max_batch_size: {largest}')
        package = Package(
            model=MODEL,
            config_file=CONFIG_FILE,
            model_files=("model.onnx",),
            max_batch_size=largest,
            interface=Interface(inputs=(IDS, MASK), outputs=(LOGITS, tensor("hidden", "float32", 32))),
            server_arguments=tuple(arguments),
        )
        return Branch(name, package, "onnxruntime", pipeline, self._parts(name))

    def chains(self, *branches: Branch) -> dict[str, list[Step]]:
        digester = Digester(self.folder / "memo")
        return chains_of(branches, self.out, device="cpu", digester=digester, bring=lambda *_: None)

    def config(self, folder: str = "") -> Any:
        return parse_config((self.out / folder / CONFIG_FILE).read_text())

    def _parts(self, name: str) -> Path:
        return self.folder / "parts" / (name or "own")

    def _part(
        self, branch: str, name: str, content: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
    ) -> Part:
        file = self._parts(branch) / name / "model.py"
        file.parent.mkdir(parents=True)
        file.write_text(content)
        return Part(name=name, backend="python", files=("model.py",), inputs=inputs, outputs=outputs)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def parts(chain: Sequence[Step]) -> list[str]:
    return [step.member.part for step in chain]


def test_equal_tokenizers_shared(release: Release) -> None:
    """Equal tokenizers are there once, and all models take what the shared one makes."""
    chains = release.chains(release.branch(), release.branch("topics"), release.branch("tags"))
    assert parts(chains[""]) == ["text", "model", "labels"]
    assert parts(chains["topics"]) == ["text", "topics-model", "topics-labels"]
    assert chains["topics"][0] is chains["tags"][0] is chains[""][0]
    assert chains["topics"][1].inputs == {"ids": "ids", "mask": "mask"}
    assert chains["topics"][1].outputs == {"logits": "topics_logits", "hidden": "topics_hidden"}
    assert (chains["topics"][2].inputs, chains["topics"][2].outputs) == (
        {"logits": "topics_logits"},
        {"label": "topics_label"},
    )
    assert [member.part for member in members_of(chains)] == [
        *("text", "model", "labels", "topics-model", "topics-labels", "tags-model", "tags-labels")
    ]
    assert not (release.out / member_folder("topics-text")).exists()


def test_differing_tokenizers_not_shared(release: Release) -> None:
    """Tokenizers of other files are not shared."""
    chains = release.chains(release.branch(), release.branch("topics", tokenizer="letters"))
    assert parts(chains["topics"]) == ["topics-text", "topics-model", "topics-labels"]
    assert chains["topics"][0].inputs == {"text": "text"}
    assert chains["topics"][1].inputs == {"ids": "topics_ids", "mask": "topics_mask"}


def test_client_read_part_not_shared(release: Release) -> None:
    """A part whose tensors clients read is not shared."""
    chains = release.chains(release.branch(), release.branch("topics", outputs=(LABEL, SPANS)), release.branch("tags"))
    assert parts(chains["topics"])[0] == "topics-text"
    assert chains["topics"][0].outputs["spans"] == "topics_spans"
    assert parts(chains["tags"])[0] == "text"


def test_later_parts_and_models_stay_apart(release: Release) -> None:
    """Parts behind a model, and models of one content, stay apart."""
    first, second = release.branch(weights="same"), release.branch("topics", weights="same")
    chains = release.chains(first, second)
    assert len({step.member.model for chain in chains.values() for step in chain}) == 1 + 2 + 2


def test_member_named_by_content(release: Release, tmp_path: Path) -> None:
    """A member is named by what it holds."""
    second_release = Release(tmp_path / "other")
    names, again = (
        {
            member.part: member.model
            for member in members_of(instance.chains(instance.branch(), instance.branch("topics", weights=w)))
        }
        for instance, w in ((release, "first"), (second_release, "second"))
    )
    assert {part for part, name in names.items() if again[part] != name} == {"topics-model"}
    assert all(name.startswith(f"{MODEL}.{part}.") for part, name in names.items())
    assert release.config(member_folder("topics-model")).name == names["topics-model"]


def test_ensemble_joins_outputs_and_limits(
    release: Release,
) -> None:
    """An ensemble answers with the outputs of all, and the smallest of their largest batches."""
    branches = [
        release.branch(arguments=["--one"]),
        release.branch("topics", largest=4, outputs=(LABEL, LOGITS), arguments=["--one", "--two"]),
    ]
    chains = release.chains(*branches)
    package = write_ensemble(branches, chains, release.out, None)
    assert [item.name for item in package.interface.inputs] == ["text"]
    assert [item.name for item in package.interface.outputs] == ["label", "topics_label", "topics_logits"]
    assert (package.max_batch_size, package.server_arguments) == (4, ("--one", "--two"))
    config = release.config()
    assert (config.name, config.platform, config.max_batch_size) == (MODEL, "ensemble", 4)
    assert [item.name for item in config.output] == ["label", "topics_label", "topics_logits"]
    assert release.config(member_folder("text")).max_batch_size == 4
    assert release.config(member_folder("model")).max_batch_size == 8
    document = json.loads((release.out / MODEL_FOLDER / "pipeline.json").read_text())
    assert document["output"] == {"model": "labels", "topics": "labels"}
    assert [item["part"] for item in document["parts"]] == [item.part for item in package.members]


def test_ensemble_tensors_made_once_and_read(release: Release) -> None:
    """Every tensor of an ensemble is made once and read."""
    branches = [release.branch(), release.branch("topics", tokenizer="letters"), release.branch("tags")]
    write_ensemble(branches, release.chains(*branches), release.out, None)
    config = release.config()
    outputs = [name for step in config.ensemble_scheduling.step for name in step.output_map.values()]
    read = {name for step in config.ensemble_scheduling.step for name in step.input_map.values()}
    assert len(outputs) == len({*outputs})
    assert {*outputs} == (read - {"text"}) | {tensor.name for tensor in config.output}
    assert not {"spans", "hidden", "topics_spans"} & {*outputs}


def test_differing_raw_inputs_not_combined(release: Release) -> None:
    """Models that take other raw inputs answer no requests together."""
    branches = release.branch(), release.branch("topics", raw=tensor("image", "string"))
    with pytest.raises(UsageError, match="topics takes image where the spec's own model takes text") as refused:
        release.chains(*branches)
    assert refused.value.remedy == "leave topics out of `pipeline: models`, or give it the same `input`"


def test_batchless_model_joins_no_ensemble(release: Release) -> None:
    """A model that does not batch stands in no ensemble."""
    with pytest.raises(EngineError, match="has no batch axis that moves"):
        release.chains(release.branch(), release.branch("topics", largest=0))


def test_script_asks_models_by_own_names(release: Release) -> None:
    """A script asks each model by the names that it has alone."""
    branches = [
        release.branch(),
        release.branch("topics", largest=4, outputs=(LABEL, SPANS)),
        release.branch("tags"),
    ]
    chains = release.chains(*branches)
    script = release.folder / "route.py"
    script.write_text("def answer(inputs, models): ...\n")
    package = build_script_package(
        *(script, [renamed(LABEL, "said")], branches, chains, release.out),
        numpy="1.26.4",
        policy=None,
        bring=lambda *_: None,
    )
    assert ([item.name for item in package.interface.outputs], package.max_batch_size) == (["said"], 4)
    settings = json.loads((release.out / MODEL_FOLDER / "settings.json").read_text())
    document = settings["chains"]
    assert list(document) == [MAIN, "topics", "tags"]
    assert [step["model"] for step in document["topics"]["steps"]] == [step.member.model for step in chains["topics"]]
    for name, outputs in {MAIN: ["label"], "topics": ["label", "spans"], "tags": ["label"]}.items():
        text, model, labels = document[name]["steps"]
        assert document[name]["outputs"] == outputs
        assert text["inputs"] == {"text": "text"}
        assert {*text["outputs"].values()} == {"ids", "mask"} | ({"spans"} if "spans" in outputs else set())
        assert (model["inputs"], model["outputs"]) == ({"ids": "ids", "mask": "mask"}, {"logits": "logits"})
        assert (labels["inputs"], labels["outputs"]) == ({"logits": "logits"}, {"label": "label"})
    assert document[MAIN]["steps"][0]["model"] == document["tags"]["steps"][0]["model"]
    assert members_of_script(release.config()) == [item.model for item in package.members]
    assert (release.out / MODEL_FOLDER / "script.py").read_bytes() == script.read_bytes()


def renamed(tensor: Tensor, name: str) -> Tensor:
    return tensor.model_copy(update={"name": name})
