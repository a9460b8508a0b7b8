from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.config.source_reference import RegisteredName, parse_reference, read_registered
from plansmith.config.spec import find_problems, make_spec
from plansmith.errors import UsageError
from plansmith.sources.reference import refuse_unfitting


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("models:/ranker@champion", "ranker", "@champion"),
        ("models:/ranker/3", "ranker", "3"),
        ("models:/ranker/latest", "ranker", "latest"),
        ("models:/ranker/Latest", "ranker", "latest"),
        ("models:/a b@3", "a b", "@3"),
        ("models:/prod.search.ranker/12", "prod.search.ranker", "12"),
        ("models:/e@mail@champion", "e@mail", "@champion"),
    ],
)
def test_model_named_like_mlflow_clients(text: str, name: str, version: str) -> None:
    """A registered model is named as MLflow's own clients name it."""
    assert read_registered(text) == RegisteredName(name, version)


def test_name_round_trips() -> None:
    """A name is written as it was read."""
    assert [str(read_registered(f"models:/m{end}")) for end in ("@a", "/3", "/latest")] == [
        "models:/m@a",
        "models:/m/3",
        "models:/m/latest",
    ]
    assert [read_registered(f"models:/m{end}").is_fixed for end in ("@3", "/3", "/latest")] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models:/ranker", "which version"),
        ("models:/m-0123456789abcdef", "which version"),
        ("models:/ranker/Production", "given up stages"),
        ("models:/ranker/03", "no version"),
        ("models:/ranker/3/4", "no version"),
        ("models:/ranker/", "no version|which version"),
        ("models:/@champion", "cannot be the name"),
        ("models:/../3", "cannot be the name"),
        ("models:/ranker@cham pion", "cannot be an alias"),
        ("models:/ranker@", "cannot be an alias"),
        ("models:/\x1b[2J@champion", "cannot be the name"),
        ("models://profile/ranker@champion", "cannot be the name|no version"),
        ("runs:/0123/model", "no registered model"),
        ("/etc/passwd", "no registered model"),
        ("", "no registered model"),
    ],
)
def test_other_names_refused_with_form(text: str, said: str) -> None:
    """Anything else is refused with what to write."""
    with pytest.raises(UsageError, match=said) as refused:
        read_registered(text)
    assert refused.value.remedy


def test_source_split_into_model_and_version(tmp_path: Path) -> None:
    """A source is split into the model and its version."""
    reference = parse_reference("mlflow:models:/Search Ranker@champion", relative_to=tmp_path)
    assert (reference.scheme, reference.location, reference.revision, reference.path) == (
        "mlflow",
        "models:/Search Ranker",
        "@champion",
        None,
    )
    assert reference.default_name == "Search-Ranker"


def test_spec_takes_registered_model(tmp_path: Path) -> None:
    """A spec takes a registered model, and none with drawn weights."""
    assert find_problems({"source": "mlflow:models:/ranker@champion"}) == []
    spec = make_spec({"source": "mlflow:models:/ranker@champion", "random_weights": True})
    with pytest.raises(UsageError, match="none to draw"):
        refuse_unfitting(parse_reference(spec.source, relative_to=tmp_path), spec)
