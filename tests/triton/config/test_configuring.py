"""What a spec says of Triton's configuration stands over what follows from the model, and only where it fits it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import make_spec
from plansmith.config.triton import TritonOptions
from plansmith.errors import UsageError
from plansmith.records.model import AxisRange, Device, Dim, EngineKind, Tensor
from plansmith.records.release import Interface, Package
from plansmith.triton.config.model_config import (
    leave_inputs_on_gpu,
    make_config,
    parse_config,
    text_of,
    with_cpu_instances,
)
from plansmith.triton.config.option_rules import ModelFacts, add_profiles, chosen_batch, require_fitting, require_served
from plansmith.triton.config.overrides import by_place, configure, is_wanted, served_package, support_files

INPUTS = (
    Tensor(name="image", dtype="float32", dims=("batch", 3, "height", "width")),
    Tensor(name="ids", dtype="int64", dims=("batch", "length")),
    Tensor(name="user", dtype="int32", dims=("batch",)),
)
OUTPUTS = (
    Tensor(name="scores", dtype="float32", dims=("batch", 4)),
    Tensor(name="hidden", dtype="float16", dims=("batch", "length", 6)),
)
AXES = {
    "batch": AxisRange(min=1, opt=4, max=16),
    "length": AxisRange(min=1, opt=8, max=32),
    "height": AxisRange(min=32, opt=64, max=128),
    "width": AxisRange(min=32, opt=64, max=256),
}
FACTS = ModelFacts(
    engine=EngineKind.ONNXRUNTIME,
    device="cpu",
    inputs={tensor.name: tensor for tensor in INPUTS},
    outputs={tensor.name: tensor for tensor in OUTPUTS},
    largest=16,
)


def configured(settings: dict[str, Any], *, device: Device = "cpu") -> tuple[Any, Package]:
    options = TritonOptions.model_validate(settings)
    package = Package(
        model="tiny",
        config_file="config.pbtxt",
        model_files=("model.onnx",),
        max_batch_size=chosen_batch(options, 16),
        interface=Interface(inputs=INPUTS, outputs=OUTPUTS),
    )
    config = make_config(package, EngineKind.ONNXRUNTIME, device)
    configure(config, by_place(options))
    assert parse_config(text_of(config)) == config
    return config, served_package(package, config)


def test_default_batching_instance_and_version() -> None:
    """A spec that says nothing has batching, one instance and the newest version."""
    config, package = configured({})
    assert config.max_batch_size == 16
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, 1)]
    assert config.version_policy.latest.num_versions == 1
    assert package.interface == Interface(inputs=INPUTS, outputs=OUTPUTS)
    assert package.reshaped == {}
    assert not config.HasField("optimization")


def test_smaller_or_no_batching_possible() -> None:
    """A smaller batch can be chosen and no batching at all."""
    config, package = configured({"max_batch_size": 4})
    assert (config.max_batch_size, package.max_batch_size) == (4, 4)
    config, package = configured({"max_batch_size": 0})
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [-1, 3, -1, -1]
    assert package.interface.inputs[0].dims == INPUTS[0].dims
    assert not configured({"max_batch_size": 1})[0].HasField("dynamic_batching")
    assert not configured({"dynamic_batching": False})[0].HasField("dynamic_batching")


def test_instance_groups_complete_from_target() -> None:
    """Groups of instances take from the target what they leave out."""
    groups = [{"count": 2, "gpus": [0, 1]}, {"kind": "cpu"}, {"kind": "auto", "gpus": [0]}]
    samples = [{"name": name, "inputs": {"user": {"zero_data": True}}} for name in ("small", "large")]
    config, _ = configured({"instance_group": groups, "model_warmup": samples}, device="gpu")
    entries = [(group.kind, group.count, list(group.gpus)) for group in config.instance_group]
    assert entries == [(1, 2, [0, 1]), (2, 1, []), (0, 1, [0])]
    on_cpu = parse_config(with_cpu_instances(text_of(config)))
    assert [(group.kind, group.count, list(group.gpus)) for group in on_cpu.instance_group] == [
        (2, 2, []),
        (2, 1, []),
        (2, 1, []),
    ]
    assert [sample.name for sample in on_cpu.model_warmup] == ["small"]


def test_clients_and_model_see_own_dims() -> None:
    """Clients see other dims and the model its own."""
    config, package = configured(
        {
            "inputs": {"ids": {"dims": [1, -1]}, "user": {"dims": [1, 1]}, "image": {"dims": [3, 64, -1]}},
            "outputs": {"scores": {"dims": [2, 2]}, "hidden": {"dims": [-1, 2, 3]}},
        }
    )
    written = {entry.name: (list(entry.dims), list(entry.reshape.shape)) for entry in (*config.input, *config.output)}
    assert written == {
        "image": ([3, 64, -1], []),
        "ids": ([1, -1], [-1]),
        "user": ([1, 1], []),
        "scores": ([2, 2], [4]),
        "hidden": ([-1, 2, 3], [-1, 6]),
    }
    assert not config.input[0].HasField("reshape")
    assert config.input[2].HasField("reshape")
    shapes = {tensor.name: tensor.dims for tensor in (*package.interface.inputs, *package.interface.outputs)}
    assert shapes == {
        "image": ("batch", 3, 64, "width"),
        "ids": ("batch", 1, "length"),
        "user": ("batch", 1, 1),
        "scores": ("batch", 2, 2),
        "hidden": ("batch", "length", 2, 3),
    }
    own: dict[str, tuple[Dim, ...]] = {tensor.name: tensor.dims for tensor in (*INPUTS[1:], *OUTPUTS)}
    assert package.reshaped == own


def test_ragged_input_is_one_dim() -> None:
    """A ragged input is one dim of any size and nothing is reshaped."""
    config, package = configured({"inputs": {"user": {"allow_ragged_batch": True}}})
    entry = config.input[2]
    assert (entry.allow_ragged_batch, list(entry.dims), entry.HasField("reshape")) == (True, [-1], False)
    assert package.interface.inputs[2].dims == ("batch", "user_0")
    assert package.reshaped == {}


def test_triton_filled_inputs_hidden_from_clients() -> None:
    """Inputs that Triton fills are none of the clients'."""
    config, package = configured(
        {
            "batch_input": [
                {"kind": "element_count", "target_name": ["user"], "data_type": "int32", "source_input": ["ids"]}
            ]
        }
    )
    assert [entry.name for entry in config.input] == ["image", "ids"]
    assert [tensor.name for tensor in package.interface.inputs] == ["image", "ids"]
    assert config.batch_input[0].kind == 0
    assert list(config.batch_input[0].source_input) == ["ids"]


def test_files_placed_where_triton_looks(tmp_path: Path) -> None:
    """Files get the places where Triton looks for them."""
    options = TritonOptions.model_validate(
        {
            "outputs": {"scores": {"label_filename": "names/labels.txt"}},
            "model_warmup": [{"name": "one", "inputs": {"ids": {"input_data_file": "data/ids", "dims": [3]}}}],
        }
    ).with_absolute_paths(tmp_path)
    assert support_files(options) == {
        "labels.txt": tmp_path / "names/labels.txt",
        "warmup/ids": tmp_path / "data/ids",
    }
    config, _ = configured(options.model_dump(mode="json"))
    assert config.output[0].label_filename == "labels.txt"
    value = config.model_warmup[0].inputs["ids"]
    assert (value.input_data_file, value.data_type, list(value.dims)) == ("ids", config.input[1].data_type, [3])


def test_accelerator_told_axis_ranges_once() -> None:
    """TensorRT inside of ONNX Runtime is told the ranges of the axes once."""
    accelerators = {"gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"trt_engine_cache_enable": "1"}}]}
    config, _ = configured(
        {"max_batch_size": 8, "optimization": {"execution_accelerators": accelerators}}, device="gpu"
    )
    add_profiles(config, INPUTS, AXES)
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(accelerator.parameters) == {
        "trt_engine_cache_enable": "1",
        "trt_profile_min_shapes": "image:1x3x32x32,ids:1x1,user:1",
        "trt_profile_opt_shapes": "image:4x3x64x64,ids:4x8,user:4",
        "trt_profile_max_shapes": "image:8x3x128x256,ids:8x32,user:8",
    }
    before = text_of(config)
    add_profiles(config, INPUTS, {**AXES, "length": AxisRange(min=9, opt=9, max=9)})
    assert text_of(config) == before


def test_gpus_warm_up_by_default() -> None:
    """A warm-up is made for GPUs unless somebody says otherwise."""
    for settings, device, expected in (
        ({}, "gpu", True),
        ({}, "cpu", False),
        ({"model_warmup": "off"}, "gpu", False),
        ({"model_warmup": "on"}, "cpu", True),
        ({"instance_group": [{"kind": "cpu"}]}, "gpu", False),
        ({"instance_group": [{"kind": "cpu"}, {"kind": "auto"}]}, "gpu", True),
    ):
        device_: Device = "gpu" if device == "gpu" else "cpu"
        config, _ = configured(settings, device=device_)
        assert is_wanted(TritonOptions.model_validate(settings), config, device_) is expected


PLAN = replace(FACTS, engine=EngineKind.TENSORRT, device="gpu", profiles=2)
_ZEROS = {name: {"zero_data": True} for name in ("image", "ids", "user")}
MISFITS: dict[str, tuple[dict[str, Any], ModelFacts, str]] = {
    "a larger batch": ({"max_batch_size": 32}, FACTS, "max_batch_size: 32 is more than the model's largest batch, 16"),
    "a larger preferred batch": (
        {"dynamic_batching": {"preferred_batch_size": [8, 24]}},
        FACTS,
        "dynamic_batching.preferred_batch_size: 24 is more than the largest batch, 16",
    ),
    "a preferred batch without batching": (
        {"dynamic_batching": {"preferred_batch_size": [2]}},
        replace(FACTS, largest=0),
        "2 is more than the largest batch, 1",
    ),
    "a GPU where there is none": ({"instance_group": [{"kind": "gpu"}]}, FACTS, "instance_group.0.kind: the target"),
    "GPUs of the target's CPU instances": ({"instance_group": [{"gpus": [0]}]}, FACTS, "instance_group.0.gpus"),
    "a plan on a CPU": ({"instance_group": [{"kind": "cpu"}]}, PLAN, "kind: TensorRT plans run on a GPU"),
    "a plan on several devices": ({"instance_group": [{"kind": "model"}]}, PLAN, "enable_multi_device"),
    "a profile of no plan": ({"instance_group": [{"profile": [0]}]}, FACTS, "only TensorRT plans have profiles"),
    "a profile that is not there": (
        {"instance_group": [{}, {"profile": [0, 2]}]},
        PLAN,
        "instance_group.1.profile: 2 is none of the plan's profiles, which are 0 to 1",
    ),
    "profiles of smaller batches": (
        {"instance_group": [{"profile": [1]}]},
        replace(PLAN, reach=lambda numbers: 2 if list(numbers) == [1] else 16),
        "instance_group.0.profile: these take batches up to 2; choose others too, or write max_batch_size: 2",
    ),
    "another backend's accelerators": (
        {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": [{"name": "tensorrt"}]}}},
        PLAN,
        "they are ONNX Runtime's",
    ),
    "an unknown accelerator": (
        {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "tensorrt"}]}}},
        FACTS,
        "tensorrt is none of openvino",
    ),
    "CUDA graphs of another backend": ({"optimization": {"cuda": {"graphs": True}}}, FACTS, "only TensorRT's backend"),
    "a part of a profile": (
        {
            "optimization": {
                "execution_accelerators": {
                    "gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"trt_profile_min_shapes": "a:1"}}]
                }
            }
        },
        FACTS,
        "give trt_profile_opt_shapes, trt_profile_max_shapes too",
    ),
    "an unknown input": (
        {"inputs": {"idz": {}}},
        FACTS,
        "inputs.idz: the model has no input 'idz'; its inputs are ids",
    ),
    "an unknown output": ({"outputs": {"y": {}}}, FACTS, "outputs.y: the model has no output 'y'"),
    "an unknown source": (
        {"batch_input": [{"kind": "item_shape", "target_name": ["user"], "data_type": "fp32", "source_input": ["z"]}]},
        FACTS,
        "batch_input.source_input: the model has no input 'z'",
    ),
    "an unknown control input": (
        {
            "sequence_batching": {
                "control_input": [{"name": "START", "control": [{"kind": "start", "bool_false_true": [False, True]}]}]
            }
        },
        FACTS,
        "sequence_batching.control_input: the model has no input 'START'",
    ),
    "an input that Triton fills": (
        {
            "batch_input": [
                {"kind": "item_shape", "target_name": ["user"], "data_type": "fp32", "source_input": ["ids"]}
            ],
            "inputs": {"user": {}},
        },
        FACTS,
        "inputs.user: Triton fills user itself",
    ),
    "a shape of a CUDA graph": (
        {"optimization": {"cuda": {"graph_spec": [{"batch_size": 99, "input": {"z": {"dim": [1]}}}]}}},
        PLAN,
        "optimization.cuda.graph_spec.batch_size: 99",
    ),
    "dims of another size": (
        {"outputs": {"scores": {"dims": [3]}}},
        FACTS,
        "outputs.scores.dims: [3] cannot become [4]",
    ),
    "dims that vary elsewhere": ({"inputs": {"image": {"dims": [-1, 3, -1]}}}, FACTS, "inputs.image.dims"),
    "dims that an output does not have fixed": (
        {"outputs": {"hidden": {"dims": [8, 6]}}},
        FACTS,
        "outputs.hidden.dims: the model's are [-1, 6]",
    ),
    "a reshape to what the model does not have": (
        {"inputs": {"ids": {"dims": [1, -1], "reshape": {"shape": [-1, 1]}}}},
        FACTS,
        "inputs.ids.reshape: the model's dims are [-1]",
    ),
    "an image format of something else": ({"inputs": {"ids": {"format": "nhwc"}}}, FACTS, "is for three dims"),
    "an optional input in batches": ({"inputs": {"ids": {"optional": True}}}, FACTS, "no optional inputs in batches"),
    "a ragged input of several dims": (
        {"inputs": {"ids": {"allow_ragged_batch": True}}},
        FACTS,
        "its backend makes one dim of all requests",
    ),
    "a ragged batch without batches": (
        {"inputs": {"user": {"allow_ragged_batch": True}}},
        replace(FACTS, largest=0),
        "served without batches",
    ),
    "labels that are not there": (
        {"outputs": {"scores": {"label_filename": "/nowhere/labels.txt"}}},
        FACTS,
        "label_filename: there is no file /nowhere/labels.txt",
    ),
    "a warm-up of other inputs": (
        {"model_warmup": [{"name": "w", "inputs": {**_ZEROS, "z": {"zero_data": True}}}]},
        FACTS,
        "model_warmup.w: the model has no input z",
    ),
    "a warm-up that leaves inputs out": (
        {"model_warmup": [{"name": "w", "inputs": {"user": {"zero_data": True}}}]},
        FACTS,
        "model_warmup.w: it says nothing of ids, image",
    ),
    "a warm-up without sizes": (
        {"model_warmup": [{"name": "w", "inputs": _ZEROS}]},
        FACTS,
        "model_warmup.w.inputs.ids.dims: give them",
    ),
    "a warm-up of another type": (
        {"model_warmup": [{"name": "w", "inputs": {**_ZEROS, "user": {"zero_data": True, "data_type": "int64"}}}]},
        FACTS,
        "model_warmup.w.inputs.user.data_type: int64 is not the input's, int32",
    ),
    "GPUs of instances wherever there are any, and there are none": (
        {"instance_group": [{"kind": "auto", "gpus": [0]}]},
        FACTS,
        "instance_group.0.gpus: the target's instances run on the CPU",
    ),
    "a warm-up of other sizes": (
        {"model_warmup": [{"name": "w", "inputs": {**_ZEROS, "image": {"zero_data": True, "dims": [4, 8, 8]}}}]},
        FACTS,
        "dims: [4, 8, 8] are none of a request's, [3, -1, -1]",
    ),
    "a warm-up of too many": (
        {"model_warmup": [{"name": "w", "batch_size": 17, "inputs": _ZEROS}]},
        FACTS,
        "model_warmup.w.batch_size: 17 is more than the largest batch, 16",
    ),
}


@pytest.mark.parametrize(("settings", "facts", "said"), MISFITS.values(), ids=MISFITS.keys())
def test_misfit_refused_with_key(settings: dict[str, Any], facts: ModelFacts, said: str) -> None:
    """What does not fit the model is refused with its key and what to do."""
    with pytest.raises(UsageError) as refusal:
        require_fitting(TritonOptions.model_validate(settings), facts)
    assert said in str(refusal.value)
    assert refusal.value.remedy


def test_labels_and_samples_examined(tmp_path: Path) -> None:
    """Labels and samples are looked into."""
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    (tmp_path / "user").write_bytes(b"123")
    samples = {**_ZEROS, "user": {"input_data_file": "user"}, "ids": {"zero_data": True, "dims": [2]}}
    samples["image"] = {"zero_data": True, "dims": [3, 32, 32]}
    options = TritonOptions.model_validate(
        {
            "outputs": {"scores": {"label_filename": "labels.txt"}},
            "model_warmup": [{"name": "w", "inputs": samples}],
        }
    ).with_absolute_paths(tmp_path)
    with pytest.raises(UsageError) as refusal:
        require_fitting(options, FACTS)
    assert refusal.value.message.splitlines()[1:] == [
        f"  outputs.scores.label_filename: {tmp_path}/labels.txt has 3 labels, and the output 4 places",
        f"  model_warmup.w.inputs.user.input_data_file: {tmp_path}/user has 3 bytes, and one sample 4",
    ]
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "user").write_bytes(b"1234")
    require_fitting(options, FACTS)


@pytest.mark.parametrize("text", [b"caf\xe9\nb\x0c\nc\xe2\x80\xa8\nd", b"a\r\nb\r\nc\r\nd\r\n", b"\n\n\n\n"])
def test_labels_end_like_triton(text: bytes, tmp_path: Path) -> None:
    """Labels end where Triton ends them, whatever they are made of."""
    (tmp_path / "labels.txt").write_bytes(text)
    settings = {"outputs": {"scores": {"label_filename": "labels.txt"}}}
    require_fitting(TritonOptions.model_validate(settings).with_absolute_paths(tmp_path), FACTS)
    require_fitting(TritonOptions.model_validate(settings).with_absolute_paths(tmp_path), replace(FACTS, outputs=None))


@pytest.mark.parametrize("name", ["config.pbtxt", "spec.yaml", "model", "warmup", "1", "8.9"])
def test_displacing_file_refused(name: str, tmp_path: Path) -> None:
    """A file that would take the place of something else is refused."""
    (tmp_path / name).write_text("a\nb\nc\nd\n")
    settings = {"outputs": {"scores": {"label_filename": name}}}
    with pytest.raises(UsageError, match=f"{name} is what something else in a release is called"):
        require_fitting(TritonOptions.model_validate(settings).with_absolute_paths(tmp_path), FACTS)


def test_same_named_files_refused(tmp_path: Path) -> None:
    """Files of one name are refused."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "labels.txt").write_text("a\n")
    outputs = {"scores": {"label_filename": "one/labels.txt"}, "hidden": {"label_filename": "two/labels.txt"}}
    with pytest.raises(UsageError, match="have the same name"):
        require_fitting(TritonOptions.model_validate({"outputs": outputs}).with_absolute_paths(tmp_path), FACTS)


EARLY: dict[str, tuple[dict[str, Any], str]] = {
    "a batch beyond the shapes": (
        {"shapes": {"x": "1x8:4x8:16x8"}, "triton": {"max_batch_size": 17}},
        "max_batch_size: 17 is more than the model's largest batch, 16",
    ),
    "a preferred batch beyond the shapes": (
        {"shapes": {"x": "1x8:4x8:16x8"}, "triton": {"dynamic_batching": {"preferred_batch_size": [32]}}},
        "32 is more than the largest batch, 16",
    ),
    "a batch beyond the usual one": (
        {"triton": {"max_batch_size": 33}},
        "max_batch_size: 33 is more than the model's largest batch, 32; shapes gives it others",
    ),
    "an output that was not chosen": ({"outputs": ["a"], "triton": {"outputs": {"b": {}}}}, "no output 'b'"),
    "a profile beyond the only one": (
        {"engine": "tensorrt", "triton": {"instance_group": [{"profile": [1]}]}},
        "profile: 1 is none of the plan's profiles, which are 0 to 0",
    ),
    "labels that are not there": (
        {"triton": {"outputs": {"y": {"label_filename": "labels.txt"}}}},
        "there is no file",
    ),
    "sequences that nobody asks": ({"triton": {"sequence_batching": {"direct": {}}}}, "write check_served: false"),
    "many answers that nobody asks": (
        {"triton": {"model_transaction_policy": {"decoupled": True}}},
        "write check_served: false",
    ),
}


@pytest.mark.parametrize(("values", "said"), EARLY.values(), ids=EARLY.keys())
def test_contradictory_spec_refused_early(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    """What the spec itself contradicts is refused before any work."""
    device: Device = "gpu" if "engine" in values else "cpu"
    with pytest.raises(UsageError) as refusal:
        require_served(make_spec({"source": "hf:bert", **values}), "bert", device, tmp_path)
    assert said in str(refusal.value)
    assert (refusal.value.model, refusal.value.step) == ("bert", "package")


@pytest.mark.parametrize(
    "values",
    [
        {"source": "onnx:graph.onnx"},
        {"source": "hf:bert", "inputs": {"x": {"dtype": "float32", "dims": [64, 3]}}},
        {"source": "hf:bert", "shapes": {"x": "1x8:8x8:4096x8"}},
    ],
)
def test_model_facts_judged_later(values: dict[str, Any], tmp_path: Path) -> None:
    """What only the model tells is judged later."""
    values |= {"triton": {"max_batch_size": 4096, "inputs": {"anything": {}}}}
    require_served(make_spec(values), "bert", "cpu", tmp_path)


@pytest.mark.parametrize(
    ("settings", "device", "dtype", "parameter"),
    [
        ({}, "gpu", "int64", "no"),
        ({}, "cpu", "int64", None),
        ({}, "gpu", "string", None),
        ({"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": "yes"}}, "gpu", "int64", "yes"),
        ({"instance_group": [{"count": 1}, {"kind": "cpu"}]}, "gpu", "int64", None),
    ],
    ids=["on a GPU", "on a CPU", "no DLPack", "as a spec says", "on both"],
)
def test_pytorch_inputs_stay_on_gpu(
    settings: dict[str, Any], device: Device, dtype: str, parameter: str | None
) -> None:
    """Unless DLPack cannot carry one of them; of other backends Triton knows by itself."""
    inputs = (INPUTS[0], INPUTS[1].model_copy(update={"dtype": dtype}))
    package = Package(
        model="tiny",
        config_file="config.pbtxt",
        model_files=("model.py",),
        max_batch_size=16,
        interface=Interface(inputs=inputs, outputs=OUTPUTS),
    )
    for kind in (EngineKind.PYTHON, EngineKind.ONNXRUNTIME):
        config = make_config(package, kind, device)
        configure(config, by_place(TritonOptions.model_validate(settings)))
        leave_inputs_on_gpu(config)
        values = {key: value.string_value for key, value in config.parameters.items()}
        custom = settings.get("parameters", {})
        own = {"FORCE_CPU_ONLY_INPUT_TENSORS": parameter} if parameter and kind is EngineKind.PYTHON else custom
        assert values == own
