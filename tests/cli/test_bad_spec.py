"""Options and specs that make no sense are refused at once, all problems together, before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.config.shapes import parse_shapes, resolve_axes
from plansmith.errors import UsageError
from plansmith.records.model import AxisRange, Tensor

from ..support.cli.command import BERT, CommandLine, Refused, check_nothing_made, check_refusal, listing

_MODEL = {"bert/config.json": json.dumps(BERT), "bert/model.safetensors": "weights"}
_SPEC = ("model.yaml", "--dry-run")


def _shapes(text: str, *says: str) -> Refused:
    return Refused(("hf:bert", "--shapes", text), 2, says, _MODEL)


def _option(*arguments: str, status: int = 2, says: tuple[str, ...]) -> Refused:
    return Refused(("hf:bert", *arguments), status, says, _MODEL)


def _yaml(text: str, *says: str, status: int = 2) -> Refused:
    return Refused(_SPEC, status, says, _MODEL | {"model.yaml": text})


SHAPES = {
    "min above opt": _shapes("input_ids=4x8:2x8:8x8", "input_ids", "'4x8:2x8:8x8' is not min <= opt <= max"),
    "opt above max": _shapes("input_ids=1x8:2x80:8x64", "is not min <= opt <= max", "order the three shapes"),
    "a zero size": _shapes("input_ids=0x8:1x8:2x8", "a size below 1", "sizes of 1 or more"),
    "a negative size": _shapes("input_ids=1x-8:1x8:2x8", "a size below 1", "sizes of 1 or more"),
    "different ranks": _shapes("input_ids=1x8:2x8x3:4x8", "different ranks", "the same rank"),
    "two shapes": _shapes("input_ids=1x8:2x8", "is not min:opt:max", "input_ids=1x8:8x64:32x256"),
    "words": _shapes("pixels=small:large:huge", "is not min:opt:max", "write it like pixels=1x8:8x64:32x256"),
    "no input's name": _shapes(
        "1x8:2x8:4x8", "is not name=min:opt:max", 'write --shapes "INPUT=1x8', "plansmith init SOURCE"
    ),
    "an input given twice": _shapes("a=1x8,a=1x8", "a is given twice", "give each input once"),
}

OPTIONS = {
    "an unknown engine": _option("--engine", "trt", says=("'--engine'", "'trt'", "'onnxruntime'", "--help")),
    "an unknown precision": _option("--precision", "fp4", says=("'--precision'", "'fp4'", "'auto'", "--help")),
    "an unknown option": _option("--shape", "a=1", says=("--shape", "--help")),
    "a missing source": Refused((), 2, ("SOURCE|SPEC.yaml", "--help")),
    "an unknown target": _option("--target", "a-toaster", status=6, says=("no target 'a-toaster'", "local-cpu")),
    "TensorRT": _option("--engine", "tensorrt", status=6, says=("local-cpu has no GPU instances", "--target")),
    "INT8 in PyTorch": _option(
        *("--engine", "python", "--precision", "int8"), status=6, says=("no precision int8", "fp32, fp16 or bf16")
    ),
    "a choice in PyTorch": _option(
        *("--engine", "python", "--precision", "auto"), status=6, says=("no precision auto", "fp32, fp16 or bf16")
    ),
    "an ONNX file in PyTorch": Refused(
        ("onnx:model.onnx", "--engine", "python"),
        2,
        ("an ONNX file is none", "--engine onnxruntime"),
        {"model.onnx": "nobody reads it"},
    ),
    "BF16": _option("--precision", "bf16", says=("no BF16 kernels for a CPU", "--engine tensorrt")),
    "FP8": _option("--precision", "fp8", says=("bert · lower: ", "no FP8 kernels for a CPU", "--engine tensorrt")),
    "FP8 in PyTorch": _option(
        *("--engine", "python", "--precision", "fp8"), status=6, says=("no precision fp8", "or --engine tensorrt")
    ),
    "INT8 for a GPU": _option(
        *("--precision", "int8", "--target", "triton-26.08"), status=6, says=("for which", "no INT8 kernels", "fp16")
    ),
    "a choice for a GPU": _option(
        *("--precision", "auto", "--target", "triton-26.08"), status=6, says=("precision auto", "a target for the CPU")
    ),
}

NAMES = {
    name: Refused(("hf:bert", f"--name={name}"), 2, ("'name'", "at most 128", repr(name)), _MODEL)
    for name in ("../x", "a/b", "..", ".hidden", "/etc", "a\nb", "-x", "model@2", "a b", "größe", "n" * 129)
}

SPECS = {
    "many wrong keys and values": _yaml(
        "source: hf:bert\nnames: x\nprecison: fp16\nengine: trt\ntriton:\n  instancez: 2\n  max_batch_size: -1\n"
        "shapes:\n  input_ids: 4x8:2x8:8x8\n  token_type_ids: 1:8:32\n",
        "7 problems",
        "model.yaml:2 'names' (did you mean name?), ",
        "model.yaml:3 'precison' (did you mean precision?), ",
        "model.yaml:4: 'engine': must be 'onnxruntime', 'tensorrt' or 'python' (got 'trt')",
        "model.yaml:6 'triton.instancez' (did you mean instance_group?)",
        "model.yaml:7: 'triton.max_batch_size': must be 0 or more (got -1)",
        "model.yaml:9: 'shapes.input_ids': '4x8:2x8:8x8' is not min <= opt <= max",
        "model.yaml:10: 'shapes.token_type_ids': write it as text in quotes",
    ),
    "a key that is almost one here, and one elsewhere": _yaml(
        "source: hf:bert\nshape:\n  input_ids: 1x8\n", "unknown key", "model.yaml:2 'shape' (did you mean shapes?)"
    ),
    "more wrong keys than fit on a screen": _yaml(
        "source: hf:bert\n" + "".join(f"key{n}: {n}\n" for n in range(20)),
        "20 problems",
        "unknown keys: ",
        "model.yaml:2 'key0', ",
        "model.yaml:21 'key19'",
    ),
    "wrong types": _yaml(
        "source: [1]\nname: {a: 1}\nrandom_weights: maybe\nshapes: 1x8\ntriton: 5\ntolerances: {logits: 5}\n",
        "model.yaml:1: 'source': must be text",
        "model.yaml:2: 'name': must be text",
        "model.yaml:3: 'random_weights': must be true or false",
        "model.yaml:4: 'shapes': must be a mapping",
        "model.yaml:5: 'triton': must be a mapping",
        "model.yaml:6: 'tolerances.logits': must be a mapping",
    ),
    "a tolerance that nothing can exceed": _yaml(
        "source: hf:bert\ntolerances:\n  logits: {max_relative: .nan, quantile_relative: -1, min_cosine: 2}\n",
        "'tolerances.logits.max_relative': must be a finite number",
        "'tolerances.logits.quantile_relative': must be 0.0 or more",
        "'tolerances.logits.min_cosine': must be 1.0 or less",
    ),
    "a range that is not text": _yaml(
        "source: hf:bert\nshapes:\n  input_ids: {min: [4], opt: [2], max: [1]}\n",
        "model.yaml:3: 'shapes.input_ids': write it as text in quotes",
    ),
    "a key that is a number": _yaml("source: hf:bert\n8: x\n", "model.yaml:2: '8': must be text"),
    "no source": _yaml("name: x\n", "'source' is missing"),
    "an unknown precision": _yaml(
        "source: hf:bert\nprecision: fp4\n",
        "1 problem",
        "'precision': must be 'fp32',",
        "'int8' or 'auto' (got 'fp4')",
    ),
    "a name that leaves the repository": _yaml("source: hf:bert\nname: ../x\n", "model.yaml:2: 'name'", "'../x'"),
    "an unknown target": _yaml("source: hf:bert\ntarget: a-toaster\n", "no target 'a-toaster'", status=6),
    "text that is not YAML": _yaml('source: "hf\n', "model.yaml is not YAML", "line 1, column 9", "mend the file"),
    "a date that does not exist": _yaml("source: hf:bert\nname: 2026-13-45\n", "model.yaml is not YAML", "month"),
    "a list": _yaml("- source: hf:bert\n", "a spec is a mapping with at least `source`", "configs/models"),
    "an empty file": _yaml("", "a spec is a mapping with at least `source`", "configs/models"),
    "a missing file": Refused(_SPEC, 2, ("cannot read model.yaml", "No such file", "name a YAML file")),
    "a folder": Refused(_SPEC, 2, ("cannot read model.yaml", "Is a directory"), {"model.yaml/": ""}),
}

CASES = {
    f"{kind}: {name!r}": case
    for kind, table in {"shapes": SHAPES, "option": OPTIONS, "name": NAMES, "spec": SPECS}.items()
    for name, case in table.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_senseless_spec_refused_early(case: Refused, run: CommandLine) -> None:
    """An option that makes no sense is refused before any work."""
    case.lay_out(run.folder)
    before = listing(run.folder)
    answer = run("compile", *case.arguments, "--no-check-served", "--json")
    check_refusal(answer, case.status, case.says)
    assert listing(run.folder) == before


def test_unknown_input_refused(run: CommandLine, models: Path) -> None:
    """An input that the model does not have is refused with those that it has."""
    arguments = ("--shapes", "pixel_values=1x3:2x3:4x3", "--no-check-served", "--json")
    answer = run("compile", f"hf:{models / 'bert'}", *arguments)
    check_refusal(answer, 2, ("no input 'pixel_values'", "its inputs are attention_mask, input_ids"))
    check_nothing_made(run.folder)


FITTING = {
    "another rank": ("input_ids=1:2:4", "rank 1, the model's input has rank 2", "batch x sequence"),
    "a fixed size": ("pixel_values=1x1x8x8", "axis 1 is fixed at 3", "write 3 there"),
    "a length above the model's own": (
        "input_ids=1x8:2x8:4x65",
        "longer than the model's own limit of 64",
        "at most 64",
    ),
    "two inputs that disagree": (
        "input_ids=1x8:2x8:4x8,mask=1x8:2x8:4x9",
        "mask and input_ids give different ranges for their common axis 'sequence'",
        "once",
    ),
}


@pytest.mark.parametrize(("text", "message", "remedy"), FITTING.values(), ids=FITTING.keys())
def test_unfitting_shapes_refused(text: str, message: str, remedy: str) -> None:
    """Shapes that do not fit the model are refused."""
    inputs = [Tensor(name=name, dtype="int64", dims=("batch", "sequence")) for name in ("input_ids", "mask")]
    inputs.append(Tensor(name="pixel_values", dtype="float32", dims=("batch", 3, 8, 8)))
    derived = {"batch": AxisRange(min=1, opt=8, max=32), "sequence": AxisRange(min=1, opt=64, max=64)}
    with pytest.raises(UsageError) as refusal:
        resolve_axes(inputs, derived, {"sequence": 64}, parse_shapes(text))
    assert message in refusal.value.message
    assert remedy in refusal.value.remedy
