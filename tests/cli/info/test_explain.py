"""`plansmith explain`: each exit code, rule and key has its page in the terminal."""

from __future__ import annotations

import pytest

from plansmith.cli.info.explain import _topics
from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError
from plansmith.triton.checker.checker import all_rules

from ...support.cli.command import CommandLine


def test_all_that_is_named_is_explained() -> None:
    """Whatever an error, a finding or a refused spec names can be explained."""
    named = {str(kind.exit_code) for kind in PlansmithError.__subclasses__()}
    named |= {rule.id for rule in all_rules()} | set(ModelSpec.model_fields)
    assert not named - set(_topics())


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        ("5", ["Exit code 5: the accuracy gate was not passed", "is not faster than"]),
        ("config.dims", ["no-dims/config.pbtxt:3: input 'x' has no dims", "ValidateIOShape"]),
        ("pipeline.top_k", ["How many labels", "Takes integer, at least 1; default 5."]),
        ("triton.dynamic_batching", ["false for not at all", "preferred_batch_size"]),
    ],
)
def test_topics_show_their_page(topic: str, shown: list[str], run: CommandLine) -> None:
    """A topic shows its section of the reference alone."""
    answer = run("explain", topic, COLUMNS="300")
    assert answer.status == 0
    assert [text for text in shown if text not in answer.stdout] == []


def test_error_names_its_page(run: CommandLine) -> None:
    """An error ends with the command that explains it."""
    assert run("show", "nothing").stderr.splitlines()[-1] == "More: plansmith explain 7"
