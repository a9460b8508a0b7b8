"""PyTorch models as they are laid out for Triton's Python backend, and repositories of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.export import export
from plansmith.compilers.export.requests import ReferenceRequest
from plansmith.compilers.python_backend.generation_parameters import GENERATES
from plansmith.compilers.python_backend.model_folder import ServedModel, write_folder
from plansmith.records.engine import Engine
from plansmith.records.model import Device, OnnxModel, Precision
from plansmith.records.release import Package
from plansmith.sources.directory import model_files
from plansmith.triton.config import model_config
from plansmith.triton.config.model_config import text_package

ODD = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class OddConfig(PretrainedConfig):
    model_type = "odd"

    def __init__(self, vocab_size=50, hidden_size=8, **kwargs):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**kwargs)


class OddModel(PreTrainedModel):
    config_class = OddConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, torch.nn.Embedding):
            module.weight.data.normal_()

    def forward(self, input_ids, **kwargs):
        rows = []
        for row in self.embed(input_ids):
            while row.abs().amax().item() < 100:  # as often as the values of this row want it
                row = row * 1.5 + 1
            rows.append(row)
        return BaseModelOutput(last_hidden_state=torch.stack(rows))
"""
"""A model's own code that branches on its data: no exporter's graph can follow it."""

ODD_INPUTS = {"input_ids": {"dtype": "int64", "dims": ["batch", "sequence"], "low": 0, "high": 49}}
ODD_SHAPES = {"input_ids": {"min": [1, 1], "opt": [2, 8], "max": [4, 16]}}


@dataclass(frozen=True)
class Laid:
    """A model that was laid out: the records, where the reference lies, and the folder for Triton."""

    onnx: OnnxModel
    engine: Engine
    reference: Path
    folder: Path


def write_odd(folder: Path) -> Path:
    """A directory with the odd model, its weights drawn at random, and its code."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "modeling_odd.py").write_text(ODD)
    (folder / "config.json").write_text(
        '{"model_type": "odd", "architectures": ["OddModel"], "vocab_size": 50, "hidden_size": 8, "auto_map":'
        ' {"AutoConfig": "modeling_odd.OddConfig", "AutoModel": "modeling_odd.OddModel"}}'
    )
    weight = torch.randn((50, 8), generator=torch.Generator().manual_seed(0))
    save_file({"embed.weight": weight}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def lay_out(folder: Path, out: Path, *, precision: Precision = Precision.FP32, **fields: Any) -> Laid:
    """Ask a model and lay it out, as the worker of a compile does.

    Args:
        folder: the source.
        out: takes the reference and the folder for Triton.
        precision: what it is to run in.
        fields: fields of `ServedModel`, and `shapes`.
    """
    source: dict[str, Any] = {"scheme": "hf", "trust_remote_code": False, "task": None} | {
        key: fields.pop(key) for key in ("scheme", "trust_remote_code", "task") if key in fields
    }
    reference, laid = out / "asked", out / "laid"
    reference.mkdir(parents=True)
    laid.mkdir()
    described, output_names = fields.pop("described", {}), fields.pop("wanted", ())
    model = {
        **source,
        "task": source["task"] or "",
        "folder": folder,
        "allow_pickle": fields.get("allow_pickle", False),
        "inputs": described,
        "outputs": output_names,
    }
    request = ReferenceRequest.model_validate({"model": model, "shapes": fields.pop("shapes", {}), "out": reference})
    onnx = export.run_reference(request, lambda _: None)
    component = onnx.components["model"]
    served = ServedModel(
        **source,
        described=described,
        wanted=output_names,
        inputs=component.inputs,
        outputs=component.outputs,
        axes=onnx.every_axis(),
        precision=precision,
        torch_compile=fields.pop("torch_compile", False),
        generation=fields.pop("generation", None),
    )
    pickled = fields.pop("allow_pickle", False)
    files = model_files(folder, trust_remote_code=bool(source["trust_remote_code"]), allow_pickle=pickled)
    assert not fields
    return Laid(onnx, write_folder(served, folder, files, laid, lasting=False), reference, laid)


def put_into(
    repository: Path, name: str, laid: Laid, *, delay_microseconds: int, together: int = 0, device: Device = "cpu"
) -> None:
    """Give a repository a model, which is linked there, and whose batcher waits so long for more requests.

    Where a number of rows is to go together, it waits no longer than until these are there.
    """
    component = laid.engine.components["model"]
    package = Package(
        model=name,
        config_file="config.pbtxt",
        model_files=component.files,
        max_batch_size=model_config.max_batch_size(component, laid.onnx.axes),
        interface=model_config.interface_of(component),
    )
    if GENERATES in laid.engine.options:
        package = text_package(package, laid.engine, laid.onnx.axes)
    (repository / name).mkdir(parents=True)
    config = model_config.make_config(package, laid.engine.kind, device)
    model_config.leave_inputs_on_gpu(config)
    config.dynamic_batching.max_queue_delay_microseconds = delay_microseconds
    config.dynamic_batching.preferred_batch_size[:] = [together] if together else []
    (repository / name / "config.pbtxt").write_text(model_config.text_of(config))
    (repository / name / "1").symlink_to(laid.folder)
