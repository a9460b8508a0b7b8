"""What it costs to plan a fleet of which nothing is stale: CPU seconds and memory at a tenth of the specs, and at all.

    python -m benchmarks.planning [SPECS]

One small model is compiled. Each spec names a graph of its own, and its release is the compiled one under the name of
that spec, published and noted as a compile does both. Then `plan_fleet` reads every spec, hashes, compares and finds
nothing to do, in a process of its own: the figures hold the start of the interpreter and all imports. Planned twice, as
the first time each graph is read and its digest remembered.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Cost, run

from plansmith.fleet.members import Member, members_in
from plansmith.fleet.plan import plan_fleet
from plansmith.steps.provenance.fingerprint import fingerprint_of
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

MOST_CPU_SECONDS_PER_THOUSAND = 10

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


def main(specs: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("models", "all", "tenth"):
            (folder / name).mkdir()
        first = _write(folder, 0)
        run([sys.executable, "-m", "plansmith", "compile", str(first), "--quiet"])
        for number in range(1, specs):
            _publish(folder, _write(folder, number))
        for number in range(0, specs, 10):
            (folder / "tenth" / f"m{number}.yaml").symlink_to(folder / "all" / f"m{number}.yaml")
        _plan(folder / "all")
        few, all_of_them = _plan(folder / "tenth"), _plan(folder / "all")
    added = all_of_them.peak_mib - few.peak_mib
    print(f"{len(range(0, specs, 10)):5} specs   {few.cpu_seconds:6.2f} CPU s   {few.peak_mib:6.1f} MiB peak")
    print(f"{specs:5} specs   {all_of_them.cpu_seconds:6.2f} CPU s   {all_of_them.peak_mib:6.1f} MiB peak")
    more = specs - len(range(0, specs, 10))
    each = (all_of_them.cpu_seconds - few.cpu_seconds) / more
    print(
        f"{1000 * each:.1f} ms and {1024 * added / more:.1f} KiB for each spec more; the aim for 1,000: below"
        f" {MOST_CPU_SECONDS_PER_THOUSAND} CPU s, and memory that does not grow"
    )


def _write(folder: Path, number: int) -> Path:
    """A spec, and its graph: the same but for its name."""
    import onnx
    from onnx import TensorProto, helper

    name = f"m{number}"
    input_info, output_info = (helper.make_tensor_value_info(io, TensorProto.FLOAT, ["batch", 3]) for io in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], name, [input_info], [output_info])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "models" / f"{name}.onnx")
    file = folder / "all" / f"{name}.yaml"
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


def _plan(folder: Path) -> Cost:
    return run([sys.executable, "-m", "benchmarks.planning", "--plan", str(folder)])


def _plan_here(folder: Path) -> None:
    planned = list(plan_fleet([folder], {}))
    stale = [member for member in planned if member.state != "fresh"]
    if stale:
        sys.exit(f"{len(stale)} of {len(planned)} are not fresh, such as {stale[0].model}: {stale[0].why}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plan"]:
        _plan_here(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
