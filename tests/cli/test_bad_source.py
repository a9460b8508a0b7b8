"""A model that cannot be had is refused with one message, and nothing is made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ..support.cli.command import BERT, CommandLine, Refused, check_nothing_made, check_refusal, listing

_TIMM = json.dumps({"architecture": "test_resnet", "num_classes": 10})
_BERT = json.dumps(BERT)
_OUTPUTS = "source: timm:resnet18\noutputs: [logits]\n"

EARLY = {
    "an unknown scheme": Refused(("gs:bert",), 2, ("'gs:bert'", "hf:<id or directory>", "timm:<name or directory>")),
    "no scheme": Refused(("bert",), 2, ("'bert'", "hf:<id or directory>")),
    "a directory without its scheme": Refused(("bert",), 2, ("'bert'", "write hf:bert"), {"bert/config.json": _BERT}),
    "nothing after the scheme": Refused(("timm:",), 2, ("nothing follows timm:",)),
    "a missing directory": Refused(("hf:./bert",), 3, ("there is no directory", "/bert", "check the path")),
    "a file": Refused(("hf:./bert",), 3, ("there is no directory", "/bert"), {"bert": "weights"}),
    "an empty directory": Refused(("hf:bert",), 3, ("bert is empty", "save_pretrained"), {"bert/": ""}),
    "no config.json": Refused(
        ("hf:bert",), 3, ("bert has no config.json", "save_pretrained"), {"bert/model.safetensors": "weights"}
    ),
    "a config.json that is not JSON": Refused(
        ("hf:bert",), 3, ("bert/config.json is not JSON", "save the model again"), {"bert/config.json": "{"}
    ),
    "another file that is not JSON": Refused(
        ("hf:bert",),
        3,
        ("bert/generation_config.json is not JSON", "save the model again"),
        {"bert/config.json": _BERT, "bert/model.safetensors": "weights", "bert/generation_config.json": "{"},
    ),
    "a config.json that is a list": Refused(("timm:net",), 3, ("holds no configuration",), {"net/config.json": "[1]"}),
    "no weights": Refused(
        ("hf:bert",), 3, ("has no weights (model.safetensors)", "--random-weights"), {"bert/config.json": _BERT}
    ),
    "weights that were cut off": Refused(
        ("hf:bert",),
        3,
        ("bert/model.safetensors is cut off or damaged", "again"),
        {"bert/config.json": _BERT, "bert/model.safetensors": "\x10\0\0\0\0\0\0\0" + '{"w":{"dtype"'},
    ),
    "weights that are something else": Refused(
        ("timm:net",),
        3,
        ("net/model.safetensors is cut off",),
        {"net/config.json": _TIMM, "net/model.safetensors": "x"},
    ),
    "a timm model as hf:": Refused(("hf:net",), 3, ("but of timm:", "write timm:"), {"net/config.json": _TIMM}),
    "a transformers model as timm:": Refused(("timm:b",), 3, ("but of hf:", "write hf:"), {"b/config.json": _BERT}),
    "pickled transformers weights": Refused(
        ("hf:bert",),
        3,
        ("pickled weights only", "safetensors", "--allow-pickle"),
        {"bert/config.json": _BERT, "bert/pytorch_model.bin": "pickle"},
    ),
    "pickled timm weights": Refused(
        ("timm:net",),
        3,
        ("pickled weights only", "safetensors", "--allow-pickle"),
        {"net/config.json": _TIMM, "net/pytorch_model.bin": "pickle"},
    ),
    "an ONNX file that is not there": Refused(
        ("onnx:net.onnx",), 3, ("there is no file", "net.onnx", "check the path")
    ),
    "a directory as an ONNX file": Refused(
        ("onnx:net",), 3, ("net is a directory", "name a file in it, such as a.onnx"), {"net/a.onnx": "graph"}
    ),
    "a program without its scheme": Refused(
        ("net.pt2",), 2, ("cannot tell what", "write torch:net.pt2"), {"net.pt2": "x"}
    ),
    "a program that is not there": Refused(("net.pt2",), 2, ("there is no file net.pt2", "write torch:<file>")),
    "a task for a program": Refused(
        ("torch:a.pt2", "--task", "fill-mask"),
        2,
        ("program of torch.export has its own outputs", "leave task out"),
        {"a.pt2": "x"},
    ),
    "nothing after onnx:": Refused(("onnx:",), 2, ("nothing follows onnx:", "the .onnx file")),
    "a task for an ONNX file": Refused(
        ("onnx:a.onnx", "--task", "fill-mask"), 2, ("a task cannot change it", "leave the task out"), {"a.onnx": "x"}
    ),
    "random weights for an ONNX file": Refused(
        ("onnx:a.onnx", "--random-weights"), 2, ("holds its weights", "leave random_weights out"), {"a.onnx": "x"}
    ),
    "a GPU for an ONNX file": Refused(
        ("onnx:a.onnx", "--device", "cuda"), 2, ("a GPU has nothing to do", "leave device out"), {"a.onnx": "x"}
    ),
    "a task that timm does not have": Refused(
        ("timm:resnet18", "--task", "fill-mask"), 2, ("no task 'fill-mask'", "image-feature-extraction")
    ),
    "outputs for a timm model": Refused(
        ("net.yaml",), 2, ("outputs cannot change that", "image-feature-extraction"), {"net.yaml": _OUTPUTS}
    ),
    "a hub that may not be asked": Refused(
        ("hf:some-org/some-model@v1",), 9, ("HF_HUB_OFFLINE is set", "some-org/some-model", "hf:<directory>")
    ),
}

# Found by the worker, so that there is its log.
NO_GRAPHS = {
    "an empty ONNX file": Refused(("onnx:a.onnx",), 3, ("a.onnx is empty", "again"), {"a.onnx": ""}),
    "another file as an ONNX file": Refused(
        ("onnx:a.onnx",), 3, ("a.onnx is no ONNX model, or is cut off", "again"), {"a.onnx": "weights"}
    ),
    "another file as a program": Refused(
        ("torch:a.pt2",),
        3,
        ("a.pt2 is damaged, or no model that torch.export.save wrote", "torch.export.save(torch.export.export("),
        {"a.pt2": "weights"},
    ),
    "an ONNX file without a graph": Refused(
        ("onnx:a.onnx",), 3, ("a.onnx holds no ONNX graph", "exporter"), {"a.onnx": "\x08\x08"}
    ),
}


@pytest.mark.parametrize("case", EARLY.values(), ids=EARLY.keys())
def test_source_without_model_refused(case: Refused, run: CommandLine) -> None:
    """A source without a usable model is refused before any work."""
    case.lay_out(run.folder)
    before = listing(run.folder)
    answer = run("compile", *case.arguments, "--no-check-served", "--json")
    check_refusal(answer, case.status, case.says)
    after = listing(run.folder)
    assert {path: after[path] for path in after if path.partition("/")[0] != "artifacts"} == before
    assert {path.name for path in run.folder.glob("artifacts/*")} <= {"history"}  # where a run began, it is noted


@pytest.mark.parametrize("case", NO_GRAPHS.values(), ids=NO_GRAPHS.keys())
def test_file_without_graph_refused(case: Refused, run: CommandLine) -> None:
    """A file that holds no ONNX graph is refused."""
    case.lay_out(run.folder)
    check_refusal(run("compile", *case.arguments, "--no-check-served", "--json"), case.status, (*case.says, "Log: "))
    check_nothing_made(run.folder)


def test_refusal_leaves_stdout_empty(run: CommandLine) -> None:
    """Without JSON, a refusal leaves standard output empty."""
    answer = run("compile", "hf:./bert")
    assert (answer.status, answer.stdout) == (3, "")
    assert answer.message.startswith("plansmith: fetch: there is no directory")


def test_unknown_timm_name_refused(run: CommandLine) -> None:
    """An unknown timm name is refused with names near it."""
    answer = run("compile", "timm:resnet180", "--no-check-served", "--json")
    check_refusal(answer, 3, ("no model 'resnet180'", "did you mean", "resnet18", "Log: "))
    check_nothing_made(run.folder)


def test_model_code_needs_trust(run: CommandLine, models: Path) -> None:
    """Code that comes with a model is not run unless trusted."""
    own = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.Own"}
    config = {**BERT, "model_type": "own", "architectures": ["Own"], "auto_map": own}
    shutil.copytree(models / "bert", run.folder / "own")
    (run.folder / "own" / "config.json").write_text(json.dumps(config))
    (run.folder / "own" / "modeling_own.py").write_text(f"open({str(run.folder / 'it-ran')!r}, 'w')\n")
    answer = run("compile", "hf:own", "--no-check-served", "--json")
    check_refusal(answer, 3, ("own comes with its own Python code", "--trust-remote-code"))
    assert not (run.folder / "it-ran").exists()
    check_nothing_made(run.folder)


def test_incomplete_checkpoint_refused(run: CommandLine, models: Path) -> None:
    """A checkpoint that lacks weights is refused."""
    answer = run("compile", f"hf:{models / 'lacking'}", "--no-check-served", "--json")
    check_refusal(answer, 3, ("the checkpoint lacks 16 weights", "encoder.layer.1", "save_pretrained"))
    check_nothing_made(run.folder)


def test_non_json_configuration_refused(run: CommandLine) -> None:
    """A configuration that is not JSON is refused where its weights would be drawn."""
    (run.folder / "bert").mkdir()
    (run.folder / "bert" / "config.json").write_text('{"a": 1,,}')
    answer = run("compile", "hf:bert", "--random-weights", "--no-check-served", "--json")
    check_refusal(answer, 3, ("bert/config.json is not JSON", "save the model again"))
