"""Fleets of which nothing is stale, and the commands that go over all of their models.

One small model is compiled. Each spec names a graph of its own, and its release is the compiled one under the name of
that spec, published and noted as a compile does both; the compile's own record stands in the history for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import PLANSMITH, run

from plansmith.fleet.members import Member, members_in
from plansmith.steps.provenance.fingerprint import fingerprint_of
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

SPEC = """\
# One of many models of a fleet.
source: onnx:../models/{name}.onnx
name: {name}
artifacts: ../artifacts
engine: onnxruntime
precision: fp32
check_served: false
shapes:
  x: "1x3:8x3:32x3"
triton:
  max_batch_size: 32
  dynamic_batching:
    max_queue_delay_microseconds: 500
tolerances:
  y: {{max_relative: 0.001}}
"""

COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "fleet plan": lambda fleet: ["fleet", "plan", f"{fleet}/specs", "--json"],
    "fleet run, nothing stale": lambda fleet: ["fleet", "run", f"{fleet}/specs", "--json"],
    "status of specs": lambda fleet: ["status", f"{fleet}/specs", "--json"],
    "status": lambda fleet: [
        *("status", "--repository", f"{fleet}/artifacts/repository"),
        *("--artifacts", f"{fleet}/artifacts", "--json"),
    ],
    "versions": lambda fleet: ["versions", "--repository", f"{fleet}/artifacts/repository", "--json"],
    "history": lambda fleet: ["history", "--artifacts", f"{fleet}/artifacts", "--limit", "1000000", "--json"],
}


def make(folder: Path, specs: int) -> Path:
    """Make a fleet in a folder, and plan it once: the first time each graph is read, and its digest remembered."""
    for name in ("models", "specs"):
        (folder / name).mkdir(parents=True)
    run([*PLANSMITH, "compile", str(_write(folder, 0)), "--quiet"])
    history = folder / "artifacts" / "history"
    (record,) = history.glob("*.json")
    for number in range(1, specs):
        _publish(folder, _write(folder, number))
        (history / f"{int(record.stem) + number:06}.json").write_bytes(record.read_bytes())
    run([*PLANSMITH, *COMMANDS["fleet plan"](folder)])
    return folder


def _write(folder: Path, number: int) -> Path:
    """A spec, and its graph: the same but for its name."""
    import onnx
    from onnx import TensorProto, helper

    name = f"m{number}"
    input_info, output_info = (helper.make_tensor_value_info(io, TensorProto.FLOAT, ["batch", 3]) for io in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], name, [input_info], [output_info])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "models" / f"{name}.onnx")
    file = folder / "specs" / f"{name}.yaml"
    file.write_text(SPEC.format(name=name))
    return file


def _publish(folder: Path, file: Path) -> None:
    """Publish the compiled release under the name of another spec, and note what that spec would be made from."""
    member = next(entry for entry in members_in(file, {}) if isinstance(entry, Member))
    repository = ModelRepository(member.repository)
    compiled = repository.manifest("m0", 1)
    package = compiled.package.model_copy(update={"model": member.name})
    draft = compiled.model_copy(update={"name": member.name, "package": package})
    release = repository.release("m0", 1)
    files = {entry.path: release / entry.path for entry in compiled.files}
    published = repository.publish(draft, files, {}, allow_interface_change=False, force=False)
    digester = Digester(folder / "artifacts" / "cache" / "digests.sqlite")
    basis = fingerprint_of(member.spec, relative_to=file.parent, digester=digester)
    repository.store_fingerprint(member.name, basis.model_copy(update={"version": published.version}))
