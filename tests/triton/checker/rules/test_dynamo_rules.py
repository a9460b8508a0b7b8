"""What NVIDIA Dynamo's worker of Triton does not start with, or serves otherwise than was meant, is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ....support.checker.written import Written

CLASSIFIER = """\
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
instance_group [ { kind: KIND_CPU } ]
"""
MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
TOKENIZER = CLASSIFIER.replace('name: "score" data_type: TYPE_FP32', 'name: "ids" data_type: TYPE_INT64')
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
ensemble_scheduling { step [
  { model_name: "part" model_version: -1
    input_map { key: "text" value: "text" } output_map { key: "ids" value: "ids" } },
  { model_name: "head" model_version: -1 input_map { key: "ids" value: "ids" } output_map { key: "y" value: "score" } }
] }
"""
HEAD = """\
backend: "python"
max_batch_size: 8
input [ { name: "ids" data_type: TYPE_INT64 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
FILES = {"1/model.py": MODEL, "labels.txt": "a\nb\nc\n"}


def rules(written: Written) -> set[str]:
    return {rule for _, rule in written.broken(dynamo=True) if rule.startswith("dynamo.")}


def test_classifier_is_passed(written: Written) -> None:
    """One text in, one score for each class out; a repository that is for nobody in particular may have any model."""
    written.add("m", CLASSIFIER, FILES)
    assert rules(written) == set()
    written.add("other", TOKENIZER, FILES)
    assert rules(written) == {"dynamo.output"}
    assert not [rule for _, rule in written.broken() if rule.startswith("dynamo.")]


def test_ensemble_steps_pass(written: Written) -> None:
    """The worker registers the ensemble alone."""
    written.add("whole", ENSEMBLE, {"1/": "", "labels.txt": "a\nb\nc\n"})
    written.add("part", TOKENIZER.replace("dims: [ 3 ] label", "dims: [ 3 ] # label"), FILES)
    written.add("head", HEAD, FILES)
    assert rules(written) == set()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("TYPE_STRING", "TYPE_INT64", "dynamo.input"),
        ("dims: [ 1 ]", "dims: [ 2 ]", "dynamo.input"),
        ("dims: [ 1 ] }", 'dims: [ 1 ] }, { name: "k" data_type: TYPE_INT32 dims: [ 1 ] }', "dynamo.input"),
        ("dims: [ 1 ] }", 'dims: [ 1 ] }, { name: "b" data_type: TYPE_STRING dims: [ 1 ] }', "dynamo.input"),
        ('"labels.txt" }', '"labels.txt" }, { name: "z" data_type: TYPE_FP32 dims: [ 1 ] }', "dynamo.output"),
        ('"labels.txt" }', '"labels.txt" }, { name: "z" data_type: TYPE_FP16 dims: [ 1 ] }', "dynamo.half-precision"),
        (' label_filename: "labels.txt"', "", "dynamo.labels"),
    ],
)
def test_misfits_are_found(written: Written, old: str, new: str, rule: str) -> None:
    """Each rule finds what breaks it, and no other one does."""
    assert old in CLASSIFIER
    written.add("m", CLASSIFIER.replace(old, new, 1), FILES)
    assert rules(written) == {rule}


def test_several_versions_are_found(written: Written) -> None:
    """Dynamo routes by name: a second version is never asked for by its number."""
    policy = "version_policy { latest { num_versions: 2 } }\n"
    written.add("m", CLASSIFIER + policy, FILES | {"2/model.py": MODEL})
    assert rules(written) == {"dynamo.versions"}


def test_optional_input_is_passed(written: Written) -> None:
    """A request need not have it."""
    fields = 'dims: [ 1 ] }, { name: "k" data_type: TYPE_INT32 dims: [ 1 ] optional: true }'
    written.add("m", CLASSIFIER.replace("dims: [ 1 ] }", fields), FILES)
    assert rules(written) == set()
