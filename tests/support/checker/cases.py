"""Models that are sound or broken in one way, what a check finds in each, and whether a server here can judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MODEL = """
import sys
sys.path.insert(0, "SITE")
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        told = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", values)]) for values in told]
"""
"""A program that answers what it is sent; SITE stands for the folder of a NumPy that the local stub can use."""

ALIKE = "the server judges a case that is broken alike"
ENDS = "it ends the server"
LOADS = "the server loads it, though it is not as it was meant"
TOGETHER = "the server loads a case that is odd in this way and others at once"
CHANCE = "the server refuses it, waits without end or ends, by chance"
FALLS = "the server refuses it, or ends with a fault of its own, by chance"
HANGS = "the server waits for the Python stub without end"


@dataclass(frozen=True)
class Case:
    """A model's folder.

    Args:
        config: of config.pbtxt; None for none.
        files: what else lies there, as for `Written.add`, and links to nothing as "-> nowhere"; a program alone by
            default.
        rules: what it breaks, all of them.
        unjudged: why a server here does not tell whether an error is one.
    """

    config: str | bytes | None
    files: Mapping[str, bytes | str] = field(default_factory=lambda: {"1/model.py": MODEL})
    rules: tuple[str, ...] = ()
    unjudged: str = ""


def tensors(input_fields: str = "", made: str = "") -> str:
    """An input `x` and an output `y` of 3 floats; what is given of one takes the place of its dims."""
    listed = (
        f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 {fields or "dims: [ 3 ]"} }} ]\n'
        for kind, name, fields in (("input", "x", input_fields), ("output", "y", made))
    )
    return "".join(listed)


HEAD = 'backend: "python"\nmax_batch_size: 8\n'
UNBATCHED = 'backend: "python"\nmax_batch_size: 0\n'
CPU = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
SOUND = f"{HEAD}{tensors()}{CPU}"
ZEROS = "data_type: TYPE_FP32 dims: [ 3 ] zero_data: true"
FROM_FILE = 'data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "x"'


def warm_up(value: str = ZEROS, *, batch: str = "batch_size: 1", name: str = "x", more: str = "") -> str:
    """A sound configuration with a warm-up of one input."""
    inputs = f'inputs {{ key: "{name}" value {{ {value} }} }}' if name else ""
    return f'{SOUND}model_warmup [ {{ name: "w" {batch} {inputs} {more} }} ]\n'


def sequences(words: str) -> str:
    """A sound configuration with sequence batching."""
    return f"{SOUND}sequence_batching {{ {words} }}\n"


def control(words: str, name: str = "START") -> str:
    """A control input of sequence batching."""
    return f'control_input [ {{ name: "{name}" control [ {{ {words} }} ] }} ]'


def state(initial: str) -> str:
    """A state of sequence batching, and how it begins."""
    return sequences(f'state [ {{ input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [ 2 ] {initial} }} ]')


START = "kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ]"
BEGIN = 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }'
PROGRAM = {"1/model.py": MODEL}
_LABELS = 'dims: [ 3 ] label_filename: "labels.txt"'

SOUND_CASES: dict[str, Case] = {
    "sound": Case(SOUND, unjudged=ALIKE),
    "all-at-once": Case(
        f"{HEAD}{tensors('dims: [ 3 ] reshape { shape: [ 3, 1 ] }', _LABELS + ' reshape { shape: [ 3, 1 ] }')}{CPU}"
        "version_policy { specific { versions: [ 1 ] } }\n"
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 10 priority_levels: 2"
        " default_priority_level: 1 priority_queue_policy { key: 2 value { max_queue_size: 4 } } }\n"
        f'model_warmup [ {{ name: "a" batch_size: 2 inputs {{ key: "x" value {{ {FROM_FILE} }} }} }},'
        f' {{ name: "b" batch_size: 1 inputs {{ key: "x" value {{ {ZEROS} }} }} }} ]\n'
        'parameters { key: "k" value { string_value: "v" } } metric_tags { key: "team" value: "a b" }\n'
        "optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } }\n",
        {**PROGRAM, "labels.txt": "a\nb\nc\n", "warmup/x": b"\0" * 12, "configs/other.pbtxt": SOUND},
    ),
    "sign-apart": Case(
        f"{HEAD}{tensors('dims: [ - 1 ]', 'dims: [ -  1 ]')}{CPU}"
        'parameters { key: "a - 1" value { string_value: "- 1" } } # - 1\n',
    ),
    "sequences": Case(
        f"{sequences(f'{control(START)} oldest {{ max_candidate_sequences: 4 preferred_batch_size: [ 8 ] }}')}"
    ),
    "decoupled": Case(f"{SOUND}model_transaction_policy {{ decoupled: true }}\n", unjudged=ALIKE),
    "several-versions": Case(
        f"{SOUND}version_policy {{ latest {{ num_versions: 1 }} }}\n",
        {"1/": "", "2/model.py": MODEL, "notes/readme": "x", "1_old/x": ""},
    ),
}

LAYOUT: dict[str, Case] = {
    "empty-folder": Case(None, {}, ("layout.not-a-model",)),
    ".git": Case(None, {"objects/x": ""}, ("layout.not-a-model",), ALIKE),
    "dangling-link": Case(SOUND, {**PROGRAM, "old": "-> nowhere"}, ("layout.dangling-link",)),
    "no-version": Case(SOUND, {"model.py": MODEL}, ("layout.no-version",)),
    "named-version": Case(SOUND, {"latest/model.py": MODEL}, ("layout.no-version", "layout.ignored-version"), ALIKE),
    "leading-zero": Case(SOUND, {"01/model.py": MODEL}, ("layout.no-version", "layout.ignored-version")),
    "backup-on-top": Case(SOUND, {**PROGRAM, "2_old/model.py": MODEL}, ("layout.version-name",), HANGS),
    "negative-version": Case(SOUND, {"-1/model.py": MODEL}, ("layout.version-name",), HANGS),
    "endless-number": Case(SOUND, {**PROGRAM, f"{'9' * 20}/x": ""}, ("layout.version-number",), ENDS),
    "none-chosen": Case(
        f"{SOUND}version_policy {{ specific {{ versions: [ 7 ] }} }}\n", rules=("layout.no-version-chosen",)
    ),
    "no-newest": Case(f"{SOUND}version_policy {{ latest {{ }} }}\n", rules=("layout.no-version-chosen",)),
    "absent-version": Case(
        f"{SOUND}version_policy {{ specific {{ versions: [ 1, 7 ] }} }}\n",
        rules=("layout.absent-version",),
        unjudged=TOGETHER,
    ),
    "a space": Case(SOUND, rules=("layout.model-name",), unjudged=TOGETHER),
    "config-in-version": Case(SOUND, {**PROGRAM, "1/config.pbtxt": SOUND}, ("layout.config-name",), TOGETHER),
}

TEXT: dict[str, Case] = {
    "config-folder": Case(None, {**PROGRAM, "config.pbtxt/": ""}, ("config.not-a-file",), ENDS),
    "not-closed": Case(f"{SOUND}input [", rules=("config.syntax",)),
    "json": Case('{"backend": "python"}', rules=("config.syntax",)),
    "two-schedulers": Case(f"{SOUND}sequence_batching {{ }} dynamic_batching {{ }}", rules=("config.syntax",)),
    "twice": Case(f"{SOUND}max_batch_size: 4", rules=("config.syntax",)),
    "float": Case(SOUND.replace(": 8", ": 8.0"), rules=("config.syntax",)),
    "unknown-field": Case(f"{SOUND}max_batchsize: 4", rules=("config.unknown-field",)),
    "no-prefix": Case(SOUND.replace("TYPE_FP32", "FP32"), rules=("config.unknown-value",)),
    "byte-order-mark": Case(b"\xef\xbb\xbf" + SOUND.encode(), rules=("config.encoding",)),
    "nul": Case(f"{SOUND}# \0", rules=("config.encoding",)),
    "latin-1": Case(SOUND.encode() + b"# \xe9\n", rules=("config.not-utf-8",), unjudged=TOGETHER),
}

CORE: dict[str, Case] = {
    "other-name": Case(f'name: "another"\n{SOUND}', rules=("config.name",)),
    "no-backend": Case(f"{tensors()}{CPU}", {"1/weights.bin": "x"}, ("config.no-backend",)),
    "unknown-platform": Case(f'platform: "onnx"\n{tensors()}{CPU}', rules=("config.platform",)),
    "pair": Case(
        f'platform: "onnxruntime_onnx"\nbackend: "pytorch"\n{tensors()}{CPU}',
        {"1/model.pt": "x"},
        ("config.backend-platform",),
    ),
    "misspelt": Case(SOUND.replace("python", "pythn"), rules=("config.backend-misspelt",)),
    "cut": Case(SOUND.replace("python", "onnx"), rules=("config.backend-misspelt",)),
    "resembling": Case(
        SOUND.replace("python", "my_python"),
        rules=("config.backend-resembling",),
        unjudged="it is not installed here",
    ),
    "custom": Case(
        SOUND.replace("python", "ours"), rules=("config.backend-custom",), unjudged="it is not installed here"
    ),
    "negative-batch": Case(SOUND.replace(": 8", ": -1"), rules=("config.max-batch-size",)),
    "metric-tag": Case(f'{SOUND}metric_tags {{ key: "a b" value: "c" }}', rules=("config.metric-tags",), unjudged=ENDS),
    "metrics": Case(
        f'{SOUND}model_metrics {{ metric_control [ {{ metric_identifier {{ family: "f" }} }} ] }}',
        rules=("config.model-metrics",),
        unjudged="this server is older than model_metrics",
    ),
    "agent": Case(
        f'{SOUND}model_repository_agents {{ agents [ {{ name: "ours" }} ] }}',
        rules=("config.repository-agent",),
        unjudged="it is not installed here",
    ),
}

BATCHING: dict[str, Case] = {
    "preferred-above": Case(
        f"{SOUND}dynamic_batching {{ preferred_batch_size: [ 16 ] }}", rules=("config.preferred-batch-size",)
    ),
    "preferred-zero": Case(
        f"{SOUND}dynamic_batching {{ preferred_batch_size: [ 0 ] }}", rules=("config.preferred-batch-size",)
    ),
    "no-default-level": Case(f"{SOUND}dynamic_batching {{ priority_levels: 2 }}", rules=("config.priority-level",)),
    "level-above": Case(
        f"{SOUND}dynamic_batching {{ priority_levels: 2 default_priority_level: 1"
        " priority_queue_policy { key: 3 value { max_queue_size: 1 } } }",
        rules=("config.priority-level",),
    ),
    "ordered-levels": Case(
        f"{SOUND}dynamic_batching {{ preserve_ordering: true priority_levels: 2 default_priority_level: 1 }}",
        rules=("config.preserve-ordering",),
    ),
    "ordered-delay": Case(
        f"{SOUND}dynamic_batching {{ preserve_ordering: true default_queue_policy"
        " { timeout_action: DELAY default_timeout_microseconds: 5 } }",
        rules=("config.preserve-ordering",),
    ),
    "cached-sequences": Case(
        f"{SOUND}sequence_batching {{ }} response_cache {{ enable: true }}", rules=("config.response-cache",)
    ),
    "cached-decoupled": Case(
        f"{SOUND}model_transaction_policy {{ decoupled: true }} response_cache {{ enable: true }}",
        rules=("config.response-cache",),
    ),
}

TENSORS: dict[str, Case] = {
    "nameless": Case(SOUND.replace('name: "x" ', ""), rules=("config.tensor-name",)),
    "input-twice": Case(
        f'{warm_up()}input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 3 ] }} ]', rules=("config.duplicate-input",)
    ),
    "output-twice": Case(
        f'{SOUND}output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 3 ] }} ]',
        rules=("config.duplicate-output",),
        unjudged=TOGETHER,
    ),
    "typeless": Case(SOUND.replace('"x" data_type: TYPE_FP32', '"x"'), rules=("config.data-type",)),
    "no-dims": Case(f"{HEAD}{tensors(' ')}{CPU}", rules=("config.dims",)),
    "dim-of-zero": Case(f"{HEAD}{tensors('dims: [ 0 ]')}{CPU}", rules=("config.dims",)),
    "output-dim-of-minus-two": Case(f"{HEAD}{tensors('', 'dims: [ -2 ]')}{CPU}", rules=("config.dims",)),
    "reshape-elements": Case(
        f"{HEAD}{tensors('dims: [ 3 ] reshape { shape: [ 4 ] }')}{CPU}", rules=("config.reshape",)
    ),
    "reshape-zero": Case(f"{HEAD}{tensors('dims: [ 3 ] reshape { shape: [ 0 ] }')}{CPU}", rules=("config.reshape",)),
    "reshape-moves": Case(
        f"{HEAD}{tensors('dims: [ 2, -1 ] reshape { shape: [ -1, 2 ] }')}{CPU}", rules=("config.reshape",)
    ),
    "reshape-to-nothing": Case(f"{HEAD}{tensors('dims: [ 3 ] reshape { }')}{CPU}", rules=("config.reshape",)),
    "reshape-without-batch": Case(f"{UNBATCHED}{tensors('dims: [ 1 ] reshape { }')}{CPU}", rules=("config.reshape",)),
    "image-format": Case(f"{HEAD}{tensors('dims: [ 3 ] format: FORMAT_NHWC')}{CPU}", rules=("config.format",)),
    "shape-tensor": Case(f"{HEAD}{tensors('dims: [ 3 ] is_shape_tensor: true')}{CPU}", rules=("config.tensorrt-only",)),
    "profile": Case(
        f'{HEAD}{tensors()}instance_group [ {{ kind: KIND_CPU profile: [ "0" ] }} ]', rules=("config.tensorrt-only",)
    ),
    "batch-input-type": Case(
        f"{SOUND}batch_input [ {{ kind: BATCH_ELEMENT_COUNT"
        ' target_name: "n" data_type: TYPE_INT64 source_input: "x" } ]',
        rules=("config.batch-input",),
    ),
    "batch-input-source": Case(
        f"{SOUND}batch_input [ {{ kind: BATCH_ELEMENT_COUNT"
        ' target_name: "n" data_type: TYPE_FP32 source_input: "q" } ]',
        rules=("config.batch-input",),
    ),
    "batch-output-target": Case(
        f"{SOUND}batch_output [ {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE"
        ' target_name: [ "y", "y" ] source_input: "x" } ]',
        rules=("config.batch-output",),
    ),
}

INSTANCES: dict[str, Case] = {
    "cpu-with-gpus": Case(
        f"{HEAD}{tensors()}instance_group [ {{ kind: KIND_CPU gpus: [ 0 ] }} ]", rules=("config.instance-gpus",)
    ),
    "model-with-gpus": Case(
        f"{HEAD}{tensors()}instance_group [ {{ kind: KIND_MODEL gpus: [ 0 ] }} ]", rules=("config.instance-gpus",)
    ),
    "gpu": Case(f"{HEAD}{tensors()}instance_group [ {{ kind: KIND_GPU }} ]", rules=("config.instance-without-gpu",)),
    "auto-with-gpus": Case(
        f"{HEAD}{tensors()}instance_group [ {{ gpus: [ 0 ] }} ]", rules=("config.instance-without-gpu",)
    ),
    "negative-count": Case(
        f"{HEAD}{tensors()}instance_group [ {{ kind: KIND_CPU count: -2 }} ]",
        rules=("config.instance-count-negative",),
        unjudged=TOGETHER,
    ),
    "resources": Case(
        f"{HEAD}{tensors()}instance_group"
        ' [ { kind: KIND_CPU count: 1 rate_limiter { resources [ { name: "R" count: 4 } ] } } ]',
        rules=("config.rate-limiter-off",),
        unjudged=TOGETHER,
    ),
}

SEQUENCES: dict[str, Case] = {
    "control-nameless": Case(sequences(control(START, "")), rules=("config.sequence-control",)),
    "control-without-values": Case(
        sequences(control("kind: CONTROL_SEQUENCE_START")), rules=("config.sequence-control",)
    ),
    "control-of-two-types": Case(
        sequences(control(f"{START} int32_false_true: [ 0, 1 ]")), rules=("config.sequence-control",)
    ),
    "control-of-one-value": Case(
        sequences(control("kind: CONTROL_SEQUENCE_END fp32_false_true: [ 1 ]")), rules=("config.sequence-control",)
    ),
    "control-twice": Case(sequences(f"{control(START)} {control(START, 'OTHER')}"), rules=("config.sequence-control",)),
    "control-of-two-kinds": Case(
        sequences(f"{control(START)} {control(START.replace('START', 'END'))}"), rules=("config.sequence-control",)
    ),
    "id-of-float": Case(
        sequences(control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32")), rules=("config.sequence-control",)
    ),
    "id-with-values": Case(
        sequences(control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ]")),
        rules=("config.sequence-control",),
    ),
    "oldest-above": Case(
        sequences("oldest { max_candidate_sequences: 4 preferred_batch_size: [ 9 ] }"),
        rules=("config.sequence-batch-size",),
    ),
    "utilization": Case(sequences("direct { minimum_slot_utilization: 1.5 }"), rules=("config.sequence-batch-size",)),
    "state-type": Case(state(BEGIN.replace("FP32", "INT32")), rules=("config.sequence-state",), unjudged=FALLS),
    "state-nameless": Case(state(BEGIN.replace('name: "s" ', "")), rules=("config.sequence-state",), unjudged=ALIKE),
    "state-dims": Case(state(BEGIN.replace("[ 2 ]", "[ 3 ]")), rules=("config.sequence-state",), unjudged=ALIKE),
    "state-rank": Case(state(BEGIN.replace("[ 2 ]", "[ 2, 1 ]")), rules=("config.sequence-state",), unjudged=ALIKE),
    "state-of-nothing": Case(
        state(BEGIN.replace("zero_data: true", "")), rules=("config.sequence-state",), unjudged=ALIKE
    ),
    "state-twice": Case(state(f"{BEGIN} {BEGIN}"), rules=("config.sequence-state",), unjudged=ALIKE),
    "state-file": Case(
        state(BEGIN.replace("zero_data: true", 'data_file: "s"')),
        {**PROGRAM, "initial_state/s": b"1234"},
        ("config.sequence-state-file",),
        FALLS,
    ),
}

FILES: dict[str, Case] = {
    "no-program": Case(SOUND, {"1/": ""}, ("files.model",), HANGS),
    "no-graph": Case(SOUND.replace("python", "onnxruntime"), {"1/other.onnx": "x"}, ("files.model",)),
    "pointer": Case(
        SOUND.replace("python", "onnxruntime"),
        {"1/model.onnx": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"},
        ("files.git-lfs-pointer",),
    ),
    "empty-graph": Case(SOUND.replace("python", "onnxruntime"), {"1/model.onnx": ""}, ("files.empty",)),
    "no-labels": Case(f"{HEAD}{tensors('', _LABELS)}{CPU}", rules=("files.labels",)),
    "labels-folder": Case(
        f"{HEAD}{tensors('', _LABELS)}{CPU}", {**PROGRAM, "labels.txt/": ""}, ("files.labels-folder",), ENDS
    ),
    "labels-outside": Case(
        f"{HEAD}{tensors('', _LABELS.replace('labels.txt', '../../l'))}{CPU}",
        {**PROGRAM, "../../l": "a\nb\nc\n"},
        ("files.labels-outside",),
        "newer servers refuse it",
    ),
    "few-labels": Case(
        f"{HEAD}{tensors('', _LABELS)}{CPU}", {**PROGRAM, "labels.txt": "a\n"}, ("files.label-count",), TOGETHER
    ),
    "endless-name": Case(
        f"{HEAD}{tensors('', _LABELS.replace('labels', 'l' * 300))}{CPU}",
        rules=("layout.unreadable",),
    ),
}

WARMUP: dict[str, Case] = {
    "skipped": Case(warm_up(batch=""), rules=("warmup.batch-size-zero",), unjudged=TOGETHER),
    "large": Case(warm_up(batch="batch_size: 9"), rules=("warmup.batch-size",), unjudged=CHANCE),
    "large-without-batch": Case(
        warm_up(batch="batch_size: 2").replace(": 8", ": 0"), rules=("warmup.batch-size",), unjudged=CHANCE
    ),
    "variable": Case(warm_up(ZEROS.replace("[ 3", "[ -1")), rules=("warmup.variable-dims",)),
    "other-dims": Case(warm_up(ZEROS.replace("[ 3", "[ 4")), rules=("warmup.dims",)),
    "batch-in-dims": Case(warm_up(ZEROS.replace("[ 3", "[ 1, 3")), rules=("warmup.dims",), unjudged=ALIKE),
    "other-type": Case(warm_up(ZEROS.replace("FP32", "INT32")), rules=("warmup.data-type",)),
    "no-data": Case(warm_up(ZEROS.replace("zero_data: true", "")), rules=("warmup.no-data",)),
    "no-input": Case(warm_up(name=""), rules=("warmup.missing-input",)),
    "another-input": Case(
        warm_up(more=f'inputs {{ key: "q" value {{ {ZEROS} }} }}'), rules=("warmup.unknown-input",), unjudged=TOGETHER
    ),
    "no-file": Case(warm_up(FROM_FILE), rules=("warmup.file",)),
    "file-folder": Case(warm_up(FROM_FILE), {**PROGRAM, "warmup/x/": ""}, ("warmup.file-folder",), ENDS),
    "short-file": Case(warm_up(FROM_FILE), {**PROGRAM, "warmup/x": b"\0" * 11}, ("warmup.file-size",)),
    "strings": Case(
        warm_up(FROM_FILE).replace("FP32", "STRING"),
        {**PROGRAM, "warmup/x": "hello\nworld\n"},
        ("warmup.file-size",),
        ALIKE,
    ),
    "long-file": Case(warm_up(FROM_FILE), {**PROGRAM, "warmup/x": b"\0" * 13}, ("warmup.file-rest",), TOGETHER),
    "random": Case(warm_up(ZEROS.replace("zero", "random")), rules=("warmup.random-data",), unjudged=TOGETHER),
}

ODD: dict[str, Case] = {
    "odd-batches": Case(
        warm_up("data_type: TYPE_FP32 dims: [ 3 ] random_data: true", more=f'inputs {{ key: "q" value {{ {ZEROS} }} }}')
        .replace("CPU count: 1 } ]", 'CPU count: -1 rate_limiter { resources [ { name: "R" count: 4 } ] } } ]')
        .replace('name: "y" data_type', 'name: "y" label_filename: "labels.txt" data_type')
        .encode()
        + b'model_warmup [ { name: "none" }, { batch_size: 2 inputs { key: "x" value { '
        + FROM_FILE.encode()
        + b" } } } ]\n"
        + b'output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
        + b"version_policy { specific { versions: [ 1, 7 ] } } # \xe9\n",
        {**PROGRAM, "1/config.pbtxt": SOUND, "labels.txt": "a\n", "warmup/x": b"\0" * 13, "01/x": ""},
        (
            "config.duplicate-output",
            "config.instance-count-negative",
            "config.not-utf-8",
            "config.rate-limiter-off",
            "files.label-count",
            "layout.absent-version",
            "layout.config-name",
            "layout.ignored-version",
            "warmup.batch-size-zero",
            "warmup.file-rest",
            "warmup.random-data",
            "warmup.unknown-input",
        ),
        LOADS,
    ),
    "odd-sequences": Case(
        f"{warm_up()}sequence_batching {{ {control(START)} }}".replace(": 8", ": 0"),
        rules=("warmup.control-input",),
        unjudged=LOADS,
    ),
    "odd-batcher": Case(
        f"{UNBATCHED}{tensors()}{CPU}dynamic_batching {{ }}",
        rules=("config.batcher-without-batches",),
        unjudged=LOADS,
    ),
}

BROKEN_CASES = {**LAYOUT, **TEXT, **CORE, **BATCHING, **TENSORS, **INSTANCES, **SEQUENCES, **FILES, **WARMUP, **ODD}

COMPLETED: dict[str, Case] = {
    "no-config": Case(None),
    "told-by-file": Case(f"{tensors()}{CPU}"),
    "named.ours": Case(None, {"1/model.ours": "x"}, ("config.backend-custom",), "it is not installed here"),
    "misnamed-config": Case(None, {**PROGRAM, "config.pbtxt.txt": SOUND}, ("layout.config-name",), TOGETHER),
    "notebook": Case(None, {**PROGRAM, ".ipynb_checkpoints/x": ""}, ("layout.first-folder",)),
}
"""Models that Triton completes by their files: another server than that of the others, which completes nothing."""
