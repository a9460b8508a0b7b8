"""`plansmith targets`, `serve-env` and `--target`: what there is, what is here, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from plansmith.config.target_names import runtime_names
from plansmith.config.targets import Runtime, load_target, require_onnxruntime

from ...support.cli.command import BERT, CommandLine, Refused, check_refusal
from ..conftest import Compiled

_MODEL = {"bert/config.json": json.dumps(BERT), "bert/model.safetensors": "weights"}
_SERVER = {"server/bin/tritonserver": "#!/bin/sh\n", "server/backends/": ""}


@pytest.mark.parametrize("width", [80, 60, 30])
def test_table_fits_all_targets(width: int, run: CommandLine) -> None:
    """The table has a row for each target and fits."""
    answer = run("targets", COLUMNS=str(width), PLANSMITH_SERVE_ENV="empty")
    assert (answer.status, answer.stderr) == (0, "")
    heading, *rows = answer.stdout[: answer.stdout.index("\n\n")].splitlines()
    assert [row.split()[0] for row in rows] == runtime_names()
    assert max(map(len, [heading, *rows])) <= max(width, 28)
    columns = heading.replace("ONNX RT", "ONNX-RT").split()
    assert columns[0] == "target"
    assert columns[-2:] == (["driver", "here"] if width == 80 else ["ONNX-RT", "here"])
    assert {row.split()[-1] for row in rows} == {"-"}


def test_table_marks_inferred_and_installed(run: CommandLine) -> None:
    """The table marks what was inferred and what is installed."""
    (run.folder / "env" / "onnxruntime-1.24.4").mkdir(parents=True)
    answer = run("targets", COLUMNS="100", PLANSMITH_SERVE_ENV="env")
    rows = {row.split()[0]: row.split()[1:] for row in answer.stdout.splitlines() if row}
    assert rows["triton-26.05"] == ["2.69.0", "13.2.1", "10.16", "1.24.4", "3.12", "595.58.03", "yes"]
    assert rows["triton-26.04"][2] == "10.16?"
    assert rows["triton-26.10"] == ["2.74.0?", "13.4.3", "11.4.0.106?", "-", "-", "-", "-"]
    assert {name for name, row in rows.items() if row[-1] == "yes"} == {
        name for name in runtime_names() if (r := load_target(name).onnxruntime) and r.version == "1.24.4"
    }


def test_table_json_has_every_fact(run: CommandLine) -> None:
    """The table as JSON has every fact."""
    targets = run("targets", "--json").document["targets"]
    assert [target["name"] for target in targets] == runtime_names()
    assert all(set(Runtime.model_fields) <= set(target) for target in targets)


def test_target_explained_with_sources(run: CommandLine) -> None:
    """One target is explained with its sources and marks."""
    output = run("targets", "triton-25.08-cpu", PLANSMITH_SERVE_ENV="empty").stdout
    target = load_target("triton-25.08-cpu")
    for fragment in (
        *target.sources,
        "1.23.0?, up to opset 23 and IR version 11",
        "not installed",
        "instances     CPU",
    ):
        assert fragment in output
    assert "to be verified in the image: cuda, driver, onnxruntime, tensorrt" in output
    assert "serve-env add triton-25.08-cpu" in output
    document = run("targets", "triton-25.08-cpu", "--json", PLANSMITH_SERVE_ENV="empty").document
    assert document == {**target.model_dump(mode="json"), "stand_in_installed": False}


def test_target_dali_told_or_refused(run: CommandLine) -> None:
    """The DALI of a target is told, and refused in words where nothing says it."""
    assert "DALI          2.4.0" in run("targets", "local-cpu").stdout
    refused = run("serve-env", "add", "triton-26.03", "--dali", PLANSMITH_SERVE_ENV="env")
    assert refused.status == 6
    for fragment in (
        "which DALI triton-26.03 has",
        "preprocessing: python",
        "tritonserver:26.03-py3",
        "targets triton-26",
    ):
        assert fragment in refused.message
    assert not (run.folder / "env").exists(), "what is refused installs nothing"


def test_dali_listed_and_removed(run: CommandLine) -> None:
    """DALI is listed with its targets and removed."""
    for name in ("dali-2.4.0", "onnxruntime-1.31.1"):
        (run.folder / "env" / name).mkdir(parents=True)
    listed = run("serve-env", "list", PLANSMITH_SERVE_ENV="env").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["dali-2.4.0", "onnxruntime-1.31.1"]
    assert listed[1].endswith("for local-cpu")
    removed = run("serve-env", "remove", "local-cpu", "--dali", PLANSMITH_SERVE_ENV="env")
    assert removed.status == 0
    left = run("serve-env", "list", "--json", PLANSMITH_SERVE_ENV="env").document["installed"]
    assert [(part["onnxruntime"], part["dali"]) for part in left] == [("1.31.1", None)]
    again = run("serve-env", "remove", "local-cpu", "--dali", PLANSMITH_SERVE_ENV="env")
    assert again.status == 9
    assert "plansmith serve-env add local-cpu --dali" in again.message


def test_target_file_is_printed(run: CommandLine) -> None:
    """The file of a target is printed, to start one's own from."""
    text = run("targets", "triton-26.09", "--yaml").stdout
    runtime = {"version": "1.29.0", "max_opset": 26, "max_ir_version": 13}
    (run.folder / "ours.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | {"onnxruntime": runtime}))
    document = run("targets", "ours.yaml", "--json").document
    assert document["onnxruntime"] == runtime
    assert document["cuda"] == load_target("triton-26.09").cuda


REFUSED = {
    "a mistyped target": Refused(("targets", "triton-26.8"), 6, ("no target 'triton-26.8'", "triton-26.08")),
    "a mistyped target to install": Refused(("serve-env", "add", "sagemaker26.05"), 6, ("sagemaker-26.05",)),
    "a file for no target": Refused(("targets", "--yaml"), 2, ("one target's file",)),
    "a missing target file": Refused(("compile", "hf:bert", "--target", "no.yaml"), 6, ("no.yaml: No such",), _MODEL),
    "a target file with problems": Refused(
        ("compile", "hf:bert", "--target", "ours.yaml"),
        6,
        ("3 problems", "ours.yaml", "flavour: is missing", "python: write the version in quotes", "gpu: is unknown"),
        _MODEL | {"ours.yaml": "description: ours\ndevices: [gpu]\npython: 3.12\ngpu: L4\n"},
    ),
    "a target without an ONNX Runtime": Refused(
        ("compile", "hf:bert", "--target", "triton-26.10"), 6, ("which ONNX Runtime triton-26.10 has", "--yaml"), _MODEL
    ),
    "an ONNX Runtime that nobody knows": Refused(("serve-env", "add", "triton-26.09"), 6, ("triton-26.09 has",)),
    "an ONNX Runtime that is not there to remove": Refused(
        ("serve-env", "remove", "triton-26.05"), 9, ("1.24.4 is not installed",), {}, {"PLANSMITH_SERVE_ENV": "empty"}
    ),
    "a place where nothing can be installed": Refused(
        ("serve-env", "add"),
        9,
        ("file/env", "Not a directory", "set PLANSMITH_SERVE_ENV"),
        {"file": ""},
        {"PLANSMITH_SERVE_ENV": "file/env"},
    ),
    "GPU models where there is no GPU for them": Refused(
        ("serve", "--repository", "theirs", "--tritonserver", "server"),
        9,
        ("target triton-26.08, with GPU instances", "tritonserver:26.08-py3", "--target triton-26.08-cpu"),
        _SERVER | {"theirs/bert/1/": "", "theirs.plansmith/repository.json": '{"target": "triton-26.08"}'},
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_wrong_target_names_remedy(case: Refused, run: CommandLine) -> None:
    """What is wrong with a target is said, with what to type."""
    case.lay_out(run.folder)
    for server in run.folder.glob("*/bin/tritonserver"):
        server.chmod(0o755)
    answer = run(*case.arguments, **case.variables)
    assert (answer.status, answer.stdout) == (case.status, "")
    assert "\nNext: " in answer.message
    assert "Traceback" not in answer.stderr
    assert not [fragment for fragment in case.says if fragment not in answer.message], answer.message


def test_refused_target_is_json(run: CommandLine) -> None:
    """A refused target is one JSON document."""
    check_refusal(run("targets", "triton-26.8", "--json"), 6, ("triton-26.08",))


def test_installed_servers_listed_and_removed(run: CommandLine) -> None:
    """What is installed is listed with its targets and removed."""
    for version in ("1.23.2", "1.24.4"):
        package = run.folder / "env" / f"onnxruntime-{version}" / "onnxruntime"
        package.mkdir(parents=True)
        (package / "library.so").write_bytes(bytes(3_000_000))
    listed = run("serve-env", "list", PLANSMITH_SERVE_ENV="env")
    assert "2.9 MiB  for triton-25.11, triton-25.12, triton-26.01" in listed.stdout
    removed = run("serve-env", "remove", "triton-25.12", PLANSMITH_SERVE_ENV="env")
    assert "which was for triton-25.11, triton-26.01 too" in removed.stdout
    left = run("serve-env", "list", "--json", PLANSMITH_SERVE_ENV="env").document["installed"]
    assert [(part["onnxruntime"], part["bytes"]) for part in left] == [("1.24.4", 3_000_000)]
    assert {"triton-26.05", "sagemaker-26.05"} <= set(left[0]["targets"])
    assert "serve-env add" in run("serve-env", "list", PLANSMITH_SERVE_ENV="none").stdout


@pytest.mark.parametrize("words", [("compile", "hf:x", "--target"), ("serve-env", "add"), ("targets",)], ids=" ".join)
def test_the_shell_completes_targets(words: tuple[str, ...], run: CommandLine) -> None:
    def complete(start: str) -> list[str]:
        line = ["plansmith", *words, start]
        answer = run(_PLANSMITH_COMPLETE="bash_complete", COMP_WORDS="\n".join(line), COMP_CWORD=str(len(line) - 1))
        return answer.stdout.splitlines()

    assert complete("triton-26.08") == ["plain,triton-26.08", "plain,triton-26.08-cpu"]
    assert complete("./ours") == ["file,./ours"]


@pytest.mark.services
@pytest.mark.slow
def test_check_uses_target_runtime(models: Path, run: CommandLine) -> None:
    """The served check uses the ONNX Runtime of the target once it is added."""
    command = ("compile", f"hf:{models / 'bert'}", "--name", "tiny", "--target", "sagemaker-25.04-cpu", "--json")
    env = {"PLANSMITH_SERVE_ENV": str(run.folder / "env")}
    assert run(*command, **env).status == 9
    added = run("serve-env", "add", "sagemaker-25.04-cpu", **env)
    assert added.status == 0, added
    assert "onnxruntime==1.21.0" in added.stdout
    served = run(*command, **env).document["served"]
    assert (served["backend"], served["backend_runtime"]) == ("stand-in", "ONNX Runtime 1.21.0")
    assert len(served["checks"]) > 5
    assert "yes" in next(row for row in run("targets", **env).stdout.splitlines() if row.startswith("sagemaker-25.04"))


@pytest.mark.slow
def test_gpu_release_checked_on_cpu(finished: Compiled, run: CommandLine) -> None:
    """A release for a GPU is checked on CPU instances and says so."""
    runtime = require_onnxruntime(load_target("local-cpu")).model_dump()
    own = {"description": "ours", "flavour": "triton", "devices": ["gpu", "cpu"], "onnxruntime": runtime}
    (finished.folder / "ours.yaml").write_text(yaml.safe_dump(own))
    arguments = (*finished.command, "--target", "ours.yaml", "--repository", "gpu", "--check-served")
    answer = run(*arguments)
    assert answer.status == 0, answer
    assert "checked on CPU instances only; the release asks for GPU ones" in answer.stdout
    assert "Next: on a machine with a GPU, " in answer.stdout
    release = finished.folder / "gpu.plansmith" / "releases" / "tiny" / "1"
    assert "KIND_GPU" in (release / "config.pbtxt").read_text()
    assert "KIND_GPU" in (finished.folder / "gpu" / "tiny" / "config.pbtxt").read_text()
    manifest = json.loads((release / "manifest.json").read_text())
    assert manifest["served"]["device"] == "cpu"
    assert manifest["target"] == manifest["spec"]["target"] == str(Path(finished.folder, "ours.yaml"))
    assert yaml.safe_load((release / "spec.yaml").read_text())["target"] == manifest["target"]
    assert "with CPU instances" in run("inspect", release).stdout
    again = run(*arguments, "--json").document
    assert again["unchanged"]
    assert again["served"]["device"] == "cpu"
