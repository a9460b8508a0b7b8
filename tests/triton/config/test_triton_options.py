"""What a spec says of Triton's configuration has the fields, names and words of Triton's own protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError
from tritonclient.grpc import model_config_pb2 as pb

from plansmith.config.messages import validation_message
from plansmith.config.triton import TritonOptions
from plansmith.records.fields import OrWord
from plansmith.records.model import Record
from plansmith.triton.config.overrides import PREFIXES

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

RENAMED = {"ModelConfig.input": "inputs", "ModelConfig.output": "outputs"}
"""Lists of the protobuf that are mappings by name in a spec."""

DERIVED = {
    "ModelConfig.name": "the model's own",
    "ModelConfig.platform": "follows from the engine",
    "ModelConfig.backend": "follows from the engine",
    "ModelConfig.ensemble_scheduling": "ensembles have specs of their own",
    "ModelConfig.default_model_filename": "follows from the engine's files",
    "ModelConfig.cc_model_filenames": "follows from the plans",
    "ModelInput.name": "the key of the mapping",
    "ModelInput.data_type": "the graph's",
    "ModelInput.is_shape_tensor": "the plan's",
    "ModelInput.is_non_linear_format_io": "the plan's",
    "ModelOutput.name": "the key of the mapping",
    "ModelOutput.data_type": "the graph's",
    "ModelOutput.is_shape_tensor": "the plan's",
    "ModelOutput.is_non_linear_format_io": "the plan's",
}


def field_of(record: type[Record], name: str) -> Any:
    """The field that stands for one of the protobuf's."""
    fields = {field.alias or key: field for key, field in record.model_fields.items()}
    assert name in fields, f"{record.__name__} has no {name}"
    return fields[name]


def records_in(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[type[Record]]:
    for extra in metadata:
        if isinstance(extra, OrWord):
            yield from records_in(extra.kind)
            return
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for inner in get_args(annotation):
        yield from records_in(inner)


def words_in(annotation: Any) -> set[str]:
    if get_origin(annotation) is Literal:
        return {word for word in get_args(annotation) if isinstance(word, str)}
    return {word for inner in get_args(annotation) for word in words_in(inner)}


def message_of(field: FieldDescriptor) -> Any:
    """The message that a field holds; of a map, that of its values, None where they are none."""
    inner: Any = field.message_type
    return inner.fields_by_name["value"].message_type if inner.GetOptions().map_entry else inner


def walk(message: Descriptor, record: type[Record]) -> Iterator[tuple[FieldDescriptor, str, Any]]:
    """Every field of a message and of all below it, with what stands for it in the records."""
    for field in message.fields:
        path = f"{message.name}.{field.name}"
        if path in DERIVED:
            continue
        info = field_of(record, RENAMED.get(path, field.name))
        yield field, path, info
        if field.message_type is None or message_of(field) in {None, pb.ModelParameter.DESCRIPTOR}:  # a text in both
            continue
        (below,) = set(records_in(info.annotation, tuple(info.metadata)))
        yield from walk(message_of(field), below)


FIELDS = list(walk(pb.ModelConfig.DESCRIPTOR, TritonOptions))


def test_protobuf_fields_settable_or_explained() -> None:
    """Every field of the protobuf can be set, or follows from the model for a reason."""
    assert len(FIELDS) > 120
    for path in DERIVED:
        message, _, name = path.partition(".")
        assert name in getattr(pb, message).DESCRIPTOR.fields_by_name, path


def test_options_known_to_protobuf() -> None:
    """No option is unknown to the protobuf."""

    def check(record: type[Record], message: Descriptor) -> None:
        plural = {"inputs": "input", "outputs": "output"} if record is TritonOptions else {}
        for key, field in record.model_fields.items():
            assert plural.get(key, field.alias or key) in message.fields_by_name, (record.__name__, key)

    check(TritonOptions, pb.ModelConfig.DESCRIPTOR)
    for field, _, info in FIELDS:
        for record in set(records_in(info.annotation, tuple(info.metadata))):
            check(record, message_of(field))


# What only some uses of a type allow.
NARROWER = {
    "BatchInput.data_type": {"int32", "fp32"},
    "Control.data_type": {"uint64", "int64", "uint32", "int32", "string"},
}


def test_enums_use_lowercase_protobuf_words() -> None:
    """Enums have the words of the protobuf without prefix and in lower case."""
    names: set[str] = set()
    for field, path, info in FIELDS:
        if field.enum_type is None:
            continue
        names.add(field.enum_type.full_name)
        values = words_in(info.annotation)
        assert values == NARROWER.get(path, _enum_values(field.enum_type)), path
    assert names == set(PREFIXES)


def _enum_values(enum: EnumDescriptor) -> set[str]:
    prefix = PREFIXES[enum.full_name]
    assert all(value.name.startswith(prefix) for value in enum.values)
    return {value.name.removeprefix(prefix).lower() for value in enum.values} - {"invalid"}


def test_records_describe_their_fields() -> None:
    """Every record says what its fields are for in a sentence."""
    below = [r for _, _, info in FIELDS for r in records_in(info.annotation, tuple(info.metadata))]
    records: set[type[Record]] = {TritonOptions, *below}
    assert len(records) > 30
    for record in records:
        for name, field in record.model_fields.items():
            assert field.description, (record.__name__, name)
            assert field.description[0].isupper(), field.description
            assert field.description.endswith("."), field.description


WHOLE: dict[str, Any] = {
    "max_batch_size": 8,
    "dynamic_batching": {
        "preferred_batch_size": [4, 8],
        "priority_levels": 2,
        "default_priority_level": 2,
        "default_queue_policy": {"timeout_action": "delay", "default_timeout_microseconds": 5},
        "priority_queue_policy": {1: {"max_queue_size": 3}},
    },
    "instance_group": [
        {
            "count": 2,
            "kind": "gpu",
            "gpus": [0, 1],
            "profile": [0],
            "rate_limiter": {"resources": [{"name": "r", "global": True, "count": 2}], "priority": 1},
        }
    ],
    "model_warmup": [{"name": "own", "inputs": {"x": {"dims": [3], "data_type": "fp32", "zero_data": True}}}],
    "optimization": {"cuda": {"graphs": True, "graph_spec": [{"batch_size": 2, "input": {"x": {"dim": [3]}}}]}},
    "parameters": {"a": "b"},
}


def test_options_survive_json() -> None:
    """Options survive JSON with the names of the protobuf."""
    options = TritonOptions.model_validate(WHOLE)
    assert TritonOptions.model_validate_json(options.model_dump_json()) == options
    dumped = options.model_dump(mode="json")
    assert dumped["instance_group"][0]["rate_limiter"]["resources"] == [{"name": "r", "global": True, "count": 2}]
    plain = TritonOptions(dynamic_batching=False, model_warmup="off")
    assert TritonOptions.model_validate(plain.model_dump(mode="json")) == plain


def test_sequence_batcher_replaces_dynamic() -> None:
    """A sequence batcher takes the place of the dynamic one, and stays when written down."""
    options = TritonOptions.model_validate({"sequence_batching": {"oldest": {"max_candidate_sequences": 4}}})
    assert options.dynamic_batching is False
    assert TritonOptions.model_validate(options.model_dump(mode="json")) == options


_SEQUENCE: dict[str, Any] = {"direct": {}}
_FILLED = {"x": {"zero_data": True}}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown key": ({"dynamic_batch": {}}, "dynamic_batch", "Extra inputs"),
    "an unknown key inside": ({"dynamic_batching": {"delay": 1}}, "dynamic_batching.delay", "Extra inputs"),
    "a preferred batch of none": (
        {"dynamic_batching": {"preferred_batch_size": [4, 0]}},
        "dynamic_batching.preferred_batch_size.1",
        "1 or more",
    ),
    "a preferred batch beyond the largest": (
        {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}},
        "",
        "dynamic_batching.preferred_batch_size is 8, and max_batch_size is 4",
    ),
    "priorities without a default": (
        {"dynamic_batching": {"priority_levels": 3}},
        "dynamic_batching",
        "default_priority_level must be from 1",
    ),
    "a default without priorities": (
        {"dynamic_batching": {"default_priority_level": 3}},
        "dynamic_batching",
        "needs priority_levels",
    ),
    "a policy for a priority that is not there": (
        {"dynamic_batching": {"priority_queue_policy": {1: {}}}},
        "dynamic_batching",
        "has level 1",
    ),
    "order and priorities": (
        {"dynamic_batching": {"preserve_ordering": True, "priority_levels": 2, "default_priority_level": 1}},
        "dynamic_batching",
        "one priority level",
    ),
    "order and delay": (
        {
            "dynamic_batching": {
                "preserve_ordering": True,
                "default_queue_policy": {"timeout_action": "delay", "default_timeout_microseconds": 9},
            }
        },
        "dynamic_batching",
        "timeout_action delay",
    ),
    "both batchers": ({"dynamic_batching": {}, "sequence_batching": _SEQUENCE}, "", "not both"),
    "two strategies": (
        {"sequence_batching": {"direct": {}, "oldest": {"max_candidate_sequences": 1}}},
        "sequence_batching",
        "direct or oldest",
    ),
    "a control that means nothing": (
        {"sequence_batching": {"control_input": [{"name": "s", "control": [{"kind": "start"}]}]}},
        "sequence_batching.control_input.0.control.0",
        "give one of",
    ),
    "a cache of sequences": (
        {"response_cache": {"enable": True}, "sequence_batching": _SEQUENCE},
        "",
        "response_cache",
    ),
    "a cache of many answers": (
        {"response_cache": {"enable": True}, "model_transaction_policy": {"decoupled": True}},
        "",
        "decoupled",
    ),
    "a CPU group with GPUs": ({"instance_group": [{"kind": "cpu", "gpus": [0]}]}, "instance_group.0", "name no gpus"),
    "a kind that nobody knows": ({"instance_group": [{"kind": "KIND_GPU"}]}, "instance_group.0.kind", "'gpu'"),
    "no instances": ({"instance_group": [{"count": 0}]}, "instance_group.0.count", "1 or more"),
    "two version policies": ({"version_policy": {"all": {}, "latest": {}}}, "version_policy", "give one of"),
    "no version": (
        {"version_policy": {"specific": {"versions": []}}},
        "version_policy.specific.versions",
        "must not be empty",
    ),
    "no dims": ({"inputs": {"x": {"dims": []}}}, "inputs.x.dims", "1 or more"),
    "a dim of none": ({"inputs": {"x": {"dims": [0]}}}, "inputs.x.dims", "1 or more"),
    "a reshape of what clients send anyway": (
        {"inputs": {"x": {"reshape": {"shape": [3]}}}},
        "inputs.x",
        "give dims too",
    ),
    "a warm-up that holds nothing": (
        {"model_warmup": [{"name": "a", "inputs": {"x": {}}}]},
        "model_warmup.0.inputs.x",
        "give one of zero_data",
    ),
    "a warm-up without a batch": (
        {"model_warmup": [{"name": "a", "batch_size": 0, "inputs": _FILLED}]},
        "model_warmup.0.batch_size",
        "1 or more",
    ),
    "warm-ups of one name": (
        {"model_warmup": [{"name": "a", "inputs": _FILLED}, {"name": "a", "inputs": _FILLED}]},
        "",
        "the name a more than once",
    ),
    "a word that is none": ({"model_warmup": "always"}, "model_warmup", "must be auto or on or off"),
    "a number for a switch": ({"dynamic_batching": 0}, "dynamic_batching", ""),
    "a parameter that is no text": ({"parameters": {"threads": 4}}, "parameters.threads", "must be text"),
    "more than the protobuf holds": ({"max_batch_size": 2**31}, "max_batch_size", "2147483647 or less"),
    "a batch input about nothing": (
        {"batch_input": [{"kind": "element_count", "target_name": ["n"], "data_type": "fp32", "source_input": []}]},
        "batch_input.0.source_input",
        "must not be empty",
    ),
}


@pytest.mark.parametrize(("settings", "place", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_triton_refusals_refused_with_key(settings: dict[str, Any], place: str, words: str) -> None:
    """What Triton would refuse is refused with its key."""
    with pytest.raises(ValidationError) as refusal:
        TritonOptions.model_validate(settings)
    (error,) = refusal.value.errors()
    assert ".".join(map(str, error["loc"])) == place
    assert words in validation_message(error)


def test_files_found_from_spec(tmp_path: Any) -> None:
    """Files are found from the spec wherever they are named."""
    options = TritonOptions.model_validate(
        {
            "outputs": {"y": {"label_filename": "labels.txt"}, "z": {}, "parameters": {"label_filename": "more.txt"}},
            "model_warmup": [{"name": "a", "inputs": {"x": {"input_data_file": "../x.bin"}}}],
            "parameters": {"label_filename": "as it is"},
        }
    ).with_absolute_paths(tmp_path)
    assert options.outputs["y"].label_filename == str(tmp_path / "labels.txt")
    assert options.outputs["parameters"].label_filename == str(tmp_path / "more.txt")
    assert not options.outputs["z"].label_filename
    assert isinstance(options.model_warmup, tuple)
    assert options.model_warmup[0].inputs["x"].input_data_file == str(tmp_path / "../x.bin")
    assert options.parameters == {"label_filename": "as it is"}
