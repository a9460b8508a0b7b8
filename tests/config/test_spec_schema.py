"""The JSON Schema of spec files says what the loader says, so that an editor finds the mistake first."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from plansmith.config.data import DataSpec
from plansmith.config.loader import read_specs
from plansmith.config.precision import LoweringOptions
from plansmith.config.schema import spec_schema
from plansmith.config.spec import ModelSpec
from plansmith.config.target.names import target_names
from plansmith.config.triton import TritonOptions
from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.records.validation import Tolerance

from ..support.documentation import code_blocks, read_everything
from ..support.spec_examples import ACCEPTED, REFUSED, RefusedSpec

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "models").glob("*.yaml"))


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(spec_schema())


def _complaints(text: str) -> list[str]:
    return [error.message for error in _validator().iter_errors(yaml.safe_load(text))]


@pytest.mark.slow
def test_the_schema_is_a_schema_and_always_the_same() -> None:
    schema = spec_schema()
    # The schema of schemas lets unknown keywords pass, which editors then ignore.
    strict = {"$id": f"{Draft202012Validator.META_SCHEMA['$id']}-strict", "unevaluatedProperties": False}
    wrong = Draft202012Validator({**Draft202012Validator.META_SCHEMA, **strict}).iter_errors(schema)
    assert not [f"{list(error.absolute_path)}: {error.message}" for error in wrong]
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema == spec_schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_spec_follows_the_schema(path: Path) -> None:
    assert _complaints(path.read_text()) == []


def test_documented_specs_are_taken_and_follow_the_schema(tmp_path: Path) -> None:
    specs = [text for text in code_blocks(read_everything(), "yaml") if "source:" in text]
    assert len(specs) >= 3
    for text in specs:
        (tmp_path / "spec.yaml").write_text(text)
        name = read_specs(tmp_path / "spec.yaml", {}).models[0].name
        assert name in {"minilm", "images", "forecaster", "sentences", "reader"}
        assert _complaints(text) == []


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_the_loader_takes_the_schema_takes(text: str) -> None:
    assert _complaints(text) == []


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_loader_refuses_the_schema_refuses_unless_only_the_loader_can_know(spec: RefusedSpec) -> None:
    try:
        complaints = _complaints(spec.text)
    except yaml.YAMLError as error:
        complaints = [str(error)]
    assert bool(complaints) == spec.by_schema, complaints


_LIMITS = "tolerances: {{y: {{max_relative: {}, quantile_relative: 0, min_cosine: {}}}}}"
_INPUT = "inputs: {{x: {{dtype: {}, dims: {}}}}}"
TAKEN = {
    "triton: {instance_group: [{count: 2}]}": True,
    "triton: {instance_group: [{count: 2.0}]}": True,
    "triton: {instance_group: [{count: 2.5}]}": False,
    'triton: {instance_group: [{count: "2"}]}': False,
    "triton: {instance_group: [{count: true}]}": False,
    "triton: {instance_group: [{kind: gpu, gpus: [0, 1]}]}": True,
    "triton: {instance_group: [{kind: KIND_GPU}]}": False,
    "triton: {instance_group: [{kind: cpu, gpus: [0]}]}": False,
    "triton: {dynamic_batching: {max_queue_delay_microseconds: 1e2}}": False,
    "triton: {dynamic_batching: false, model_warmup: off}": True,
    "triton: {dynamic_batching: true}": False,
    "triton: {dynamic_batching: 0}": False,
    "triton: {dynamic_batching: {}, model_warmup: auto}": True,
    "triton: {model_warmup: 'on'}": True,
    "triton: {model_warmup: 1}": False,
    "triton: {model_warmup: [{name: a, inputs: {x: {zero_data: true, dims: [3]}}}]}": True,
    "triton: {model_warmup: [{name: a, inputs: {x: {dims: [3]}}}]}": False,
    "triton: {model_warmup: [{name: a, inputs: {x: {input_data_file: ~/x}}}]}": False,
    "triton: {outputs: {y: {label_filename: ~/labels.txt}}}": False,
    "triton: {version_policy: {all: {}}}": True,
    "triton: {version_policy: {latest: {num_versions: 0}}}": False,
    "triton: {priority: max}": False,
    "triton: {optimization: {priority: max, cuda: {graphs: yes}}}": True,
    "triton: {max_batch_size: 4}": True,
    "triton: {parameters: {threads: 4}}": False,
    "force: yes": True,
    'force: "yes"': False,
    "force: 1": False,
    "check_served: null": False,
    _LIMITS.format("1.0e-4", 1): True,
    _LIMITS.format("1e-4", -1): True,
    _LIMITS.format("'2.5E+1'", ".5"): True,
    _LIMITS.format("+.5e1", "-5e-1"): True,
    _LIMITS.format("-1e-4", 1): False,
    _LIMITS.format("'0.001'", 1): False,
    _LIMITS.format("1e", 1): False,
    _LIMITS.format("' 1e-4'", 1): False,
    _LIMITS.format("true", 1): False,
    _LIMITS.format("1", "true"): False,
    _LIMITS.format("1", "1.5"): False,
    "inputs: {x: {low: -1e3, high: 1e3}}": True,
    "inputs: {x: {low: -1, high: null}}": False,
    "inputs: {x: {low: false, high: 1}}": False,
    "inputs: {x: {mask: 1}}": False,
    _INPUT.format("float32", "[batch, 3, 2.0]"): True,
    _INPUT.format("complex64", "[batch]"): False,
    _INPUT.format("float32", "[batch, 0]"): False,
    _INPUT.format("float32", "[batch, true]"): False,
    _INPUT.format("float32", "[batch, '3']"): False,
    _INPUT.format("float32", "[batch, größe]"): False,
    _INPUT.format("float32", "[batch, 1.5]"): False,
    "outputs: [a, b]": True,
    "outputs: [a, a]": False,
    "source: nope:x": False,
    "source: 'timm:'": False,
    "source: hf:~/bert": False,
    "tritonserver: ~/t": False,
    "data: {path: ~/a.csv}": False,
    "data: {path: ./~, calibration: 64, evaluation: 0}": True,
    "data: {path: a.csv, calibration: 2.5}": False,
    "data: {path: a.csv, columns: {text: [a]}}": False,
    "data: {path: a.csv, max_metric_drop: 1e-2}": True,
    "data: {path: a.csv, max_metric_drop: 2}": False,
    "data: a.csv": False,
    "precision: auto": True,
    "lowering: {autocast: ~/python}": False,
    "lowering: {autocast: $PYTHON}": False,
    "lowering: {keep: [attention, 'head$']}": True,
    "lowering: {keep: attention}": False,
    "lowering: {lower_io: 1}": False,
    "lowering: {calibration: kl}": False,
    "lowering: {budget: -1}": False,
    "lowering: {quantisation: static, calibration: entropy, budget: 0}": True,
}
_ONLY_THE_LOADER_KNOWS = {
    "inputs: {x: {low: -1, high: null}}": "low and high go together",
    "triton: {instance_group: [{kind: cpu, gpus: [0]}]}": "name no gpus",
    "triton: {model_warmup: [{name: a, inputs: {x: {dims: [3]}}}]}": "give one of zero_data",
}


@pytest.mark.parametrize(("text", "taken"), TAKEN.items(), ids=TAKEN.keys())
def test_loader_and_schema_agree_on_what_a_value_is(text: str, taken: bool, tmp_path: Path) -> None:
    whole = text if text.startswith("source") else f"source: hf:bert\n{text}"
    (tmp_path / "bert").mkdir()
    (tmp_path / "spec.yaml").write_text(whole)
    said = _ONLY_THE_LOADER_KNOWS.get(text, "")
    assert (not _complaints(whole)) == (taken or bool(said))
    with nullcontext() if taken else pytest.raises(UsageError, match=said or None):
        read_specs(tmp_path / "spec.yaml", {})


RECORDS: list[type[Record]] = [ModelSpec, TritonOptions, Tolerance, DataSpec, LoweringOptions]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_says_what_it_is_for_in_a_sentence(record: type[Record]) -> None:
    for name, field in record.model_fields.items():
        assert field.description, name
        assert field.description[0].isupper(), name
        assert field.description.endswith("."), name


def test_every_key_of_a_spec_is_described_where_an_editor_looks() -> None:
    definitions: dict[str, Any] = spec_schema()["$defs"]
    records = ("TritonOptions", "ToleranceChange", "DataSpec", "LoweringOptions")
    for name in ("ModelSpec", "PartialModelSpec", "SpecFile", *records):
        for key, field in definitions[name]["properties"].items():
            referred = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or referred["description"], key
    assert set(definitions["ModelSpec"]["properties"]) == set(ModelSpec.model_fields)
    assert definitions["ModelSpec"]["required"] == ["source"]
    assert definitions["ModelSpec"]["properties"]["target"]["examples"] == target_names()
    assert not [name for name in definitions if name.startswith("Partial") and "required" in definitions[name]]
