"""A lowered graph for a person to take away: made and judged like that of a compile, and put into a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.errors import UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, EngineKind, LoweredModel, Precision
from plansmith.records.release import LOWERED_FILE, LoweredGraph
from plansmith.records.validation import ValidationReport
from plansmith.steps.cache import toolchain
from plansmith.steps.graph_steps import GraphSteps
from plansmith.steps.requirements import require_kernels
from plansmith.steps.runner import Finished
from plansmith.steps.sample import needs_samples
from plansmith.steps.tensorrt.compile import PlanSteps
from plansmith.steps.tensorrt.graph import PlanGraph
from plansmith.steps.validate import Judged, judge_engine
from plansmith.system.files import fsync_tree, move_into_place
from plansmith.system.temporary import scratch_folder
from plansmith.validation.gate import require_passed

_Made = tuple[Finished[LoweredModel], Finished[DataSet] | None, Finished[ValidationReport], PlanGraph | None]


class GraphLowering(GraphSteps):
    """One model on its way from source to a lowered graph in a folder; arguments as for `GraphSteps`."""

    def run(self, out: Path) -> LoweredGraph:
        """All steps; the folder appears whole or not at all.

        Args:
            out: where the graph goes; nothing may be there yet.

        Raises:
            PlansmithError: located at the step that failed; nothing was written.
        """
        _require_sense(self.spec)
        require_kernels(self.spec, self.name, self.target)
        if out.exists():
            raise UsageError(
                f"{out} is there already", remedy="name another --output, or move it away", model=self.name
            )
        plans = self._plan_steps() if self.spec.tensorrt.check_build else None
        lowered, data, validation, graph = self._make(plans)
        record = LoweredGraph(
            name=self.name,
            folder=str(out),
            lowered=lowered.record,
            data=data.record if data else None,
            validation=validation.record,
            build_check=graph.check if graph is not None else None,
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder("lower", out.parent) as scratch:
            made = Path(scratch) / out.name
            made.mkdir()
            for component in record.lowered.components.values():
                for file in component.files:
                    shutil.copyfile(lowered.folder / file, made / file)
            if graph is not None and graph.layers_file is not None:
                shutil.copyfile(graph.layers_file, made / graph.layers_file.name)
            (made / LOWERED_FILE).write_text(record.model_dump_json(indent=2))
            fsync_tree(made)
            move_into_place(made, out)
        return record

    def _make(self, plans: PlanSteps | None) -> _Made:
        source = self.fetch()
        onnx = self.export(source)
        data = self.sample(source, onnx) if needs_samples(self.spec, onnx.record) else None
        lowered = self.lower(onnx, data)
        graph = plans.check(onnx, lowered) if plans is not None else None
        # On a CPU, whatever will run it in the end: what is wrong here needs no GPU to show.
        engine = Engine(
            kind=EngineKind.ONNXRUNTIME,
            components=lowered.record.components,
            precision=lowered.record.precision,
            options={},
            toolchain={"onnxruntime": toolchain.step_toolchain("compile")["onnxruntime"]},
        )
        candidate = Finished(engine, lowered.folder, lowered.digest, lowered.cached)
        judged = Judged(candidate, onnx, lowered, data)
        report = judge_engine(self._stages, self.spec, judged, require=self._with_report(require_passed))
        return lowered, data, report, graph


def _require_sense(spec: ModelSpec) -> None:
    """Refuse what cannot be lowered, or not so that somebody could run it."""
    if spec.precision is Precision.FP32:
        raise UsageError(
            "a model is exported in fp32, so that there is nothing to lower",
            remedy="say what to lower it to: --precision int8, fp8, fp16, bf16 or auto",
        )
    if spec.engine not in {EngineKind.ONNXRUNTIME, EngineKind.TENSORRT}:
        raise UsageError(
            f"engine {spec.engine} runs no graph, so that there is nothing to lower for it",
            remedy="use --engine onnxruntime or tensorrt",
        )
    if spec.precision == "auto" and spec.engine is not EngineKind.ONNXRUNTIME:
        raise UsageError(
            f"auto goes by speed, and {spec.engine} is not here to be timed",
            remedy="choose --precision int8, fp8, fp16 or bf16, or --engine onnxruntime",
        )
