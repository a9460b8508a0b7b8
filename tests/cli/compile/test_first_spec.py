"""A first spec says what a model takes, and loads as what it says, whatever things are called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from plansmith.cli.compile.scaffold import Studied, write_spec
from plansmith.config.data import DataSpec
from plansmith.config.loader import read_specs
from plansmith.config.precision import LoweringOptions
from plansmith.config.shapes import resolve_axes
from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec, make_spec
from plansmith.records.model import AxisRange, SourceModel, Tensor
from plansmith.sources.loaded_model import Signature

_AXES = {"batch": AxisRange(min=1, opt=8, max=32), "sequence": AxisRange(min=1, opt=64, max=128)}


@dataclass(frozen=True)
class Inputs:
    """Inputs by their dims, and the input names that a spec has to settle."""

    dims: dict[str, tuple[int | str, ...]]
    written: list[str]


INPUTS = {
    "one": Inputs({"x": ("batch", 3, 8, 8)}, ["x"]),
    "with the same axes": Inputs({"a": ("batch", "sequence"), "b": ("batch", "sequence"), "c": ("batch",)}, ["a"]),
    "of which a later one has more axes": Inputs({"a": ("batch",), "b": ("batch", "sequence")}, ["b"]),
    "with one axis in common": Inputs({"a": ("batch", "sequence"), "b": ("batch", "frames")}, ["a", "b"]),
    "with one axis each": Inputs({"a": ("batch",), "b": ("frames",)}, ["a", "b"]),
    "that do not move": Inputs({"a": (1, 3), "b": (4,)}, []),
    "beside one that does not move": Inputs({"a": (1, 3), "b": ("batch", 2)}, ["b"]),
    "with odd names": Inputs(
        {"a: b": ("batch",), "$x {y}": ("frames",), "#1\n": ("sequence",)}, ["a: b", "$x {y}", "#1\n"]
    ),
}


def _studied(signature: Signature, source: str = "timm:resnet18", folder: Path = Path(), **facts: str) -> Studied:
    found = SourceModel(
        scheme="timm",
        location="x",
        revision=facts.get("revision"),
        licence=facts.get("licence"),
        digest="",
        random_weights=False,
        trust_remote_code=False,
    )
    return Studied("its-name", parse_reference(source, relative_to=folder), found, signature)


def _signature(inputs: dict[str, tuple[int | str, ...]], *outputs: str) -> Signature:
    tensors = tuple(Tensor(name=name, dtype="int64", dims=dims) for name, dims in inputs.items())
    axes = _AXES | {"frames": AxisRange(min=2, opt=3, max=4)}
    return Signature(inputs=tensors, outputs=outputs, axes=axes, limits={"sequence": 512}, mask_input="b")


def _read(text: str, folder: Path) -> ModelSpec:
    (folder / "first.yaml").write_text(text)
    return read_specs(folder / "first.yaml", {}).models[0].spec


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS.keys())
def test_the_shapes_settle_every_axis_once_and_as_the_model_would(inputs: Inputs, tmp_path: Path) -> None:
    signature = _signature(inputs.dims)
    spec = _read(write_spec(make_spec({"source": "timm:resnet18"}), _studied(signature), tmp_path), tmp_path)
    assert list(spec.shapes) == inputs.written
    moving = {dim for dims in inputs.dims.values() for dim in dims if isinstance(dim, str)}
    nothing = {axis: AxisRange(min=0, opt=0, max=0) for axis in moving}
    settled = resolve_axes(signature.inputs, nothing, signature.limits, spec.shapes)
    assert settled == {axis: signature.axes[axis] for axis in moving}


def test_a_comment_names_axes_limits_mask_and_who_follows() -> None:
    inputs: dict[str, tuple[int | str, ...]] = {
        "a": ("batch", "sequence"),
        "b": ("batch", "sequence"),
        "c": ("batch", "frames"),
    }
    text = write_spec(make_spec({"source": "timm:resnet18"}), _studied(_signature(inputs)), Path())
    words = " ".join(line.strip(" #") for line in text.splitlines())
    assert "batch x sequence; sequence at most 512 in this model; b follows; b marks padding with 0 a:" in words
    assert "batch x frames; the same batch as above c:" in words


def test_the_commented_tolerances_are_those_of_the_gate_under_the_outputs_own_names(tmp_path: Path) -> None:
    signature = _signature({"x": ("batch",)}, "logits", "a: $b")
    text = write_spec(make_spec({"source": "timm:resnet18"}), _studied(signature), tmp_path)
    assert _read(text, tmp_path).tolerances == {}
    start = text.index("# tolerances:")
    example, rest = text[start:].split("\n\n", 1)
    said = _read(text[:start] + re.sub(r"^# ", "", example, flags=re.MULTILINE) + "\n\n" + rest, tmp_path)
    assert {name: limit.max_relative for name, limit in said.tolerances.items()} == {"logits": 1e-4, "a: $b": 1e-4}


@pytest.mark.parametrize(
    ("inputs", "path"), [("input_ids", "sentences.txt"), ("pixel_values", "images"), ("past_values", "inputs.npz")]
)
def test_the_commented_data_and_lowering_are_keys_with_the_values_that_they_have_anyway(
    inputs: str, path: str, tmp_path: Path
) -> None:
    text = write_spec(make_spec({"source": "timm:resnet18"}), _studied(_signature({inputs: ("batch",)})), tmp_path)
    spec = _read(text, tmp_path)
    assert (spec.data, spec.lowering) == (None, LoweringOptions())
    assert "# data:\n" in text
    start = text.index("# data:")
    data, lowering, rest = text[start:].split("\n\n", 2)
    uncommented = [re.sub(r"^# ", "", part, flags=re.MULTILINE) for part in (data, lowering)]
    assert "As it is when left out:\nlowering:\n" in uncommented[1]
    told = uncommented[1][uncommented[1].index("lowering:") :]
    said = _read(f"{text[:start]}{uncommented[0]}\n\n{told}\n\n{rest}", tmp_path)
    assert said.data == DataSpec(path=path)
    assert said.lowering == LoweringOptions()
    assert said.lowering.model_fields_set == LoweringOptions.model_fields.keys() - {"autocast"}


def test_licence_and_commit_stand_in_the_first_lines(tmp_path: Path) -> None:
    signature = _signature({"x": ("batch",)})
    text = write_spec(make_spec({"source": "timm:x"}), _studied(signature, licence="a\nforce: true"), tmp_path)
    assert not _read(text, tmp_path).force
    assert "The model's licence: a force: true." in text
    spec = make_spec({"source": "hf:a/b"})
    studied = _studied(signature, "hf:a/b", revision="c0ffee")
    assert "It was at commit c0ffee; write @c0ffee to stay with it." in write_spec(spec, studied, tmp_path).replace(
        "\n# ", " "
    )
    assert _read(write_spec(spec, studied, tmp_path), tmp_path).source == "hf:a/b"


def test_a_source_in_a_home_folder_is_written_out_as_specs_take_no_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bert").mkdir()
    text = write_spec(
        make_spec({"source": "hf:~/bert"}), _studied(_signature({"x": ("batch",)}), "hf:~/bert", tmp_path), tmp_path
    )
    assert _read(text, tmp_path).source == f"hf:{tmp_path}/bert"


@pytest.mark.parametrize(
    "typed", ["models/bert", "./models/../models/bert", "link", "through/bert", "{here}/models/bert", "."]
)
@pytest.mark.parametrize("place", [".", "specs", "models/bert", "through", "$a b"])
def test_a_relative_source_directory_is_still_the_same_one(
    typed: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("specs", "models/bert", "$a b", "far/away/bert"):
        Path(name).mkdir(parents=True)
    Path("link").symlink_to("models/bert")
    Path("through").symlink_to("far/away")
    source = f"hf:{typed.format(here=tmp_path)}"
    signature = _signature({"x": ("batch",)})
    text = write_spec(make_spec({"source": source}), _studied(signature, source, tmp_path), Path(place).resolve())
    found = _read(text, Path(place))
    assert found.name == "its-name"
    there = parse_reference(found.source, relative_to=Path(place).absolute()).path
    meant = parse_reference(source, relative_to=tmp_path).path
    assert there is not None
    assert meant is not None
    assert there.resolve() == meant.resolve()
    assert Path(found.source.partition(":")[2]).is_absolute() == Path(source.partition(":")[2]).is_absolute()
