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
from plansmith.config.engine_options import LoweringOptions
from plansmith.config.loader import read_specs, spec_schema
from plansmith.config.spec import ModelSpec
from plansmith.config.target_names import target_names
from plansmith.config.triton import TritonOptions
from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.records.validation import Tolerance

from ..support.spec_examples import ACCEPTED, REFUSED, RefusedSpec

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "models").glob("*.yaml"))


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(spec_schema())


def _complaints(text: str) -> list[str]:
    return [error.message for error in _validator().iter_errors(yaml.safe_load(text))]


@pytest.mark.slow
def test_schema_is_valid_and_stable() -> None:
    """The schema is a valid schema and always the same."""
    schema = spec_schema()
    # The schema of schemas lets unknown keywords pass, which editors then ignore.
    strict = {"$id": f"{Draft202012Validator.META_SCHEMA['$id']}-strict", "unevaluatedProperties": False}
    wrong = Draft202012Validator({**Draft202012Validator.META_SCHEMA, **strict}).iter_errors(schema)
    assert not [f"{list(error.absolute_path)}: {error.message}" for error in wrong]
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema == spec_schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_spec_follows_schema(path: Path) -> None:
    """A shipped spec follows the schema."""
    assert _complaints(path.read_text()) == []


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_schema_takes_what_loader_takes(text: str) -> None:
    """What the loader takes, the schema takes."""
    assert _complaints(text) == []


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED.keys())
def test_schema_refuses_what_loader_refuses(spec: RefusedSpec) -> None:
    """What the loader refuses, the schema refuses, unless only the loader can know."""
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


@pytest.mark.parametrize(("text", "valid"), TAKEN.items(), ids=TAKEN.keys())
def test_loader_and_schema_agree(text: str, valid: bool, tmp_path: Path) -> None:
    """Loader and schema agree on what a value is."""
    whole = text if text.startswith("source") else f"source: hf:bert\n{text}"
    (tmp_path / "bert").mkdir()
    (tmp_path / "spec.yaml").write_text(whole)
    pattern = _ONLY_THE_LOADER_KNOWS.get(text, "")
    assert (not _complaints(whole)) == (valid or bool(pattern))
    with nullcontext() if valid else pytest.raises(UsageError, match=pattern or None):
        read_specs(tmp_path / "spec.yaml", {})


RECORDS: list[type[Record]] = [ModelSpec, TritonOptions, Tolerance, DataSpec, LoweringOptions]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_fields_have_descriptions(record: type[Record]) -> None:
    """Every field says what it is for in a sentence."""
    for name, field in record.model_fields.items():
        assert field.description, name
        assert field.description[0].isupper(), name
        assert field.description.endswith("."), name


def test_spec_keys_described_for_editors() -> None:
    """Every key of a spec is described where an editor looks."""
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
