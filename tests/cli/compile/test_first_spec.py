"""A first spec says what a model takes, and loads as what it says, whatever things are called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from plansmith.cli.compile.scaffold import Studied, write_spec
from plansmith.config.data import DataSpec
from plansmith.config.engine_options import LoweringOptions
from plansmith.config.loader import read_specs
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
    source_model = SourceModel(
        scheme="timm",
        location="x",
        revision=facts.get("revision"),
        licence=facts.get("licence"),
        digest="",
        random_weights=False,
        trust_remote_code=False,
    )
    return Studied("its-name", parse_reference(source, relative_to=folder), source_model, signature)


def _signature(inputs: dict[str, tuple[int | str, ...]], *outputs: str) -> Signature:
    tensors = tuple(Tensor(name=name, dtype="int64", dims=dims) for name, dims in inputs.items())
    axes = _AXES | {"frames": AxisRange(min=2, opt=3, max=4)}
    return Signature(inputs=tensors, outputs=outputs, axes=axes, limits={"sequence": 512}, mask_input="b")


def _read(text: str, folder: Path) -> ModelSpec:
    (folder / "first.yaml").write_text(text)
    return read_specs(folder / "first.yaml", {}).models[0].spec


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS.keys())
def test_shapes_settle_every_axis(inputs: Inputs, tmp_path: Path) -> None:
    """The shapes settle every axis once and as the model would."""
    signature = _signature(inputs.dims)
    spec = _read(write_spec(make_spec({"source": "timm:resnet18"}), _studied(signature), tmp_path), tmp_path)
    assert list(spec.shapes) == inputs.written
    moving = {dim for dims in inputs.dims.values() for dim in dims if isinstance(dim, str)}
    nothing = {axis: AxisRange(min=0, opt=0, max=0) for axis in moving}
    settled = resolve_axes(signature.inputs, nothing, signature.limits, spec.shapes)
    assert settled == {axis: signature.axes[axis] for axis in moving}


def test_comment_names_axes_and_limits() -> None:
    """A comment names axes, limits, the mask and who follows."""
    inputs: dict[str, tuple[int | str, ...]] = {
        "a": ("batch", "sequence"),
        "b": ("batch", "sequence"),
        "c": ("batch", "frames"),
    }
    text = write_spec(make_spec({"source": "timm:resnet18"}), _studied(_signature(inputs)), Path())
    comment = " ".join(line.strip(" #") for line in text.splitlines())
    assert "batch x sequence; sequence at most 512 in this model; b follows; b marks padding with 0 a:" in comment
    assert "batch x frames; the same batch as above c:" in comment


def test_commented_tolerances_match_gate(tmp_path: Path) -> None:
    """The commented tolerances are those of the gate, under the outputs' own names."""
    signature = _signature({"x": ("batch",)}, "logits", "a: $b")
    text = write_spec(make_spec({"source": "timm:resnet18"}), _studied(signature), tmp_path)
    assert _read(text, tmp_path).tolerances == {}
    start = text.index("# tolerances:")
    example, rest = text[start:].split("\n\n", 1)
    spec = _read(text[:start] + re.sub(r"^# ", "", example, flags=re.MULTILINE) + "\n\n" + rest, tmp_path)
    assert {name: limit.max_relative for name, limit in spec.tolerances.items()} == {"logits": 1e-4, "a: $b": 1e-4}


@pytest.mark.parametrize(
    ("inputs", "path"), [("input_ids", "sentences.txt"), ("pixel_values", "images"), ("past_values", "inputs.npz")]
)
def test_commented_keys_hold_defaults(inputs: str, path: str, tmp_path: Path) -> None:
    """The commented data and lowering are keys with the values that they have anyway."""
    text = write_spec(make_spec({"source": "timm:resnet18"}), _studied(_signature({inputs: ("batch",)})), tmp_path)
    spec = _read(text, tmp_path)
    assert (spec.data, spec.lowering) == (None, LoweringOptions())
    assert "# data:\n" in text
    start = text.index("# data:")
    data, lowering, rest = text[start:].split("\n\n", 2)
    uncommented = [re.sub(r"^# ", "", part, flags=re.MULTILINE) for part in (data, lowering)]
    assert "As it is when left out:\nlowering:\n" in uncommented[1]
    lowering_text = uncommented[1][uncommented[1].index("lowering:") :]
    result = _read(f"{text[:start]}{uncommented[0]}\n\n{lowering_text}\n\n{rest}", tmp_path)
    assert result.data == DataSpec(path=path)
    assert result.lowering == LoweringOptions()
    assert result.lowering.model_fields_set == LoweringOptions.model_fields.keys()


def test_licence_and_commit_come_first(tmp_path: Path) -> None:
    """Licence and commit stand in the first lines."""
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


def test_home_folder_source_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source in a home folder is written out, as specs take no tilde."""
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
def test_relative_source_stays_same(typed: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative source directory is still the same one."""
    monkeypatch.chdir(tmp_path)
    for name in ("specs", "models/bert", "$a b", "far/away/bert"):
        Path(name).mkdir(parents=True)
    Path("link").symlink_to("models/bert")
    Path("through").symlink_to("far/away")
    source = f"hf:{typed.format(here=tmp_path)}"
    signature = _signature({"x": ("batch",)})
    text = write_spec(make_spec({"source": source}), _studied(signature, source, tmp_path), Path(place).resolve())
    spec = _read(text, Path(place))
    assert spec.name == "its-name"
    directory = parse_reference(spec.source, relative_to=Path(place).absolute()).path
    meant = parse_reference(source, relative_to=tmp_path).path
    assert directory is not None
    assert meant is not None
    assert directory.resolve() == meant.resolve()
    assert Path(spec.source.partition(":")[2]).is_absolute() == Path(source.partition(":")[2]).is_absolute()
