"""Lists of models: what stands in the shipped one, and what a wrong one is told."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from plansmith.errors import UsageError
from plansmith.fleet.zoo.entries import ZooEntry, pick, read_list, shipped_list

SHIPPED = Path(__file__).parents[3] / "configs" / "zoo.yaml"


def refusal(folder: Path, text: str) -> UsageError:
    path = folder / "list.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_list(path)
    return caught.value


def test_shipped_list_is_complete() -> None:
    """The shipped list has 120 models of 45 architectures and 70 timm families."""
    import timm

    entries = read_list(SHIPPED)
    assert len(entries) >= 120
    assert len({(e.architecture, e.task) for e in entries if e.model_type}) >= 45
    modules = {timm.models.model_entrypoint(e.timm).__module__ for e in entries if e.timm}
    assert len(modules) >= 70


def test_packaged_list_matches_checkout() -> None:
    """The list that plansmith comes with is that of the checkout."""
    assert read_list(shipped_list()) == read_list(SHIPPED)


def test_shipped_entries_omit_inputs() -> None:
    """No entry of the shipped list says what the model takes."""
    assert set(ZooEntry.model_fields) == {"name", "timm", "model_type", "architecture", "task", "config"}


def test_speech_frames_match_real_models() -> None:
    """Five seconds are hundreds of frames then: the memory of some grows with their square."""
    strides = [prod(e.config["conv_stride"]) for e in read_list(SHIPPED) if "conv_stride" in e.config]
    assert len(strides) >= 4
    assert set(strides) == {320}


def test_list_problems_told_at_once(tmp_path: Path) -> None:
    """Every problem of a list is told at once."""
    error = refusal(
        tmp_path,
        "models:\n"
        "  - {timm: resnet10t, inputs: {}}\n"
        "  - {architecture: BertModel}\n"
        "  - {model_type: bert}\n"
        "  - {timm: resnet10t, config: {a: 1}}\n",
    )
    assert error.message.splitlines()[0].startswith("4 problems in ")
    for fragment in (
        "list.yaml:2 'models.0.inputs'",
        "list.yaml:3: 'models.1': an entry has either `timm` or `model_type`",
        "list.yaml:4: 'models.2': a transformers model needs its `architecture`",
        "list.yaml:5: 'models.3': a timm model has its own configuration",
    ):
        assert fragment in error.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: []", "'models': the list is empty"),
        ("{}", "'models' is missing"),
        ("- 1", "is a mapping with `models`"),
        ("a: [", "is not YAML"),
        ("models: [{timm: resnet10t}, {timm: resnet10t}]", "list.yaml:1: 'timm:resnet10t' stands there already"),
    ],
)
def test_invalid_list_refused(tmp_path: Path, text: str, says: str) -> None:
    """A file that is not a list is refused."""
    error = refusal(tmp_path, text)
    assert says in error.message
    assert error.remedy


def test_missing_list_refused(tmp_path: Path) -> None:
    """A list that is not there is refused."""
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        read_list(tmp_path / "none.yaml")


def test_names_picked_by_regular_expression() -> None:
    """Names are picked by a regular expression."""
    entries = (ZooEntry(timm="resnet10t"), ZooEntry(model_type="bert", architecture="BertModel"))
    assert pick(entries, "^bert") == entries[1:]
    assert pick(entries, "") == entries
    with pytest.raises(UsageError, match="no name holds a match of 'gpt'"):
        pick(entries, "gpt")
    with pytest.raises(UsageError, match="is no regular expression"):
        pick(entries, "(")
