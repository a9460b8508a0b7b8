"""FP16 and BF16: mixed precision by ranges that were measured on calibration inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision.fp16 import attention_masks, graph, modelopt_autocast, ranges, rules
from plansmith.compilers.precision.fp16.format import BF16, FLOAT, FORMATS, Format, number
from plansmith.compilers.precision.fp16.fp32_twin import twin
from plansmith.compilers.precision.fp16.operators import gains, opset
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.opsets import forget_defaults
from plansmith.config.precision import LoweringOptions
from plansmith.data.reference import StoredCases
from plansmith.errors import ExportError, first_line
from plansmith.records.model import Precision
from plansmith.validation.coverage import UNTRIED_KERNELS

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method

_LACKS_KERNEL = "NOT_IMPLEMENTED"


def methods(
    model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, *, precision: Precision
) -> list[Method]:
    """The ways to lower a graph to FP16 or BF16: one, or none where every node has to stay FP32.

    Args:
        model: in FP32, cleaned, its weights in memory; not changed.
        samples: calibration inputs; those of the largest shapes should be among them.
        options: what a person asked for.
        precision: FP16 or BF16.

    Raises:
        ExportError: the graph cannot be run, or there is nothing to run it on.
        EnvironmentFault: another interpreter was asked for, and is not fit.
    """
    if options.autocast:
        return modelopt_autocast.methods(model, samples, options, precision=precision)
    method = MeasuredMethod(model, samples, options, FORMATS[precision])
    return [method] if method.lowerable else []


class MeasuredMethod:
    """Mixed precision by measured ranges; see `Method`.

    Args:
        model: in FP32, its weights in memory; not changed.
        samples: calibration inputs.
        options: what a person asked for.
        form: the format to lower to.
    """

    def __init__(self, model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, form: Format) -> None:
        self.name = f"{form.words}, mixed by measured ranges"
        self.precision = form.precision
        self._form = form
        self._graph = Graph(_prepared(model, form))
        types = ranges.tensor_types(self._graph.model)
        floats = {name for name, kind in types.items() if kind == "tensor(float)"}
        measured = ranges.measure(self._graph, floats, lambda: (case.feed for case in samples), form.largest)
        masks = attention_masks.find(self._graph, floats, measured, form.limit)
        version = opset(self._graph.model)
        sequences = {name for name, kind in types.items() if not kind.startswith("tensor")}
        facts = rules.Facts(self._graph, floats, measured, masks, form, version, sequences)
        self._reasons = rules.reasons(facts, options.keep)
        self._plan = graph.Plan(floats, form, version, masks.ends, options.lower_io)
        low = graph.settle(self._graph, self._plan, self._reasons)
        computing = [n for n in self._graph.model.graph.node if any(o in floats for o in n.output)]
        self.lowerable = tuple(n.name for n in computing if n.name in low)
        between = "it only hands numbers from FP32 to FP32"
        self.kept: Mapping[str, str] = self._reasons | {
            n.name: between for n in computing if n.name not in low and n.name not in self._reasons
        }
        self.settings: Mapping[str, str] = {
            "limit": f"magnitudes up to {number(form.limit)}, a quarter of the format's end",
            "inputs and outputs": form.words if options.lower_io else "FP32",
            "masks": f"end at {attention_masks.FLOOR:.0f} at {', '.join(masks.ends)}" if masks.ends else "none",
            "opset": str(version),
        }
        self.not_validated: tuple[str, ...] = (UNTRIED_KERNELS[form.precision],)

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A lowered copy of the graph; see `Method`.

        Raises:
            ExportError: ONNX Runtime refuses what was written.
        """
        unknown = set(keep).difference(self.lowerable)
        if unknown:
            raise ValueError(f"not among the nodes that are lowered: {', '.join(sorted(unknown))}")
        low = graph.settle(self._graph, self._plan, {*self._reasons, *keep})
        lowered = graph.write(self._graph, self._plan, low)
        _require_loadable(lowered, self._form)
        return lowered

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The graph in FP32 with every result rounded: on a CPU the lowered one itself would hide its overflows."""
        return twin(lowered, self._form)


def _prepared(model: onnx.ModelProto, form: Format) -> onnx.ModelProto:
    """A copy with names for all nodes, constants among the initialisers, and an opset that has the format."""
    import onnx

    copy = _copied(model)
    forget_defaults(copy)
    graph = Graph(copy)
    for node in [n for n in graph.model.graph.node if n.op_type == "Constant"]:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if value is not None and value.data_type == FLOAT:
            tensor = graph.model.graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            graph.model.graph.node.remove(node)
    prepared = graph.model
    _forget_unused_domains(prepared)
    if gains(prepared, form):
        # Where the converter cannot do it, nodes without the format stay FP32, and say so.
        with suppress(onnx.version_converter.ConvertError, RuntimeError):
            prepared = onnx.version_converter.convert_version(prepared, form.opset)
            prepared.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(prepared.opset_import))
    return prepared


def _forget_unused_domains(model: onnx.ModelProto) -> None:
    """Take out the operator sets that ONNX Runtime lists without need: other readers stumble over them."""
    used = {"", "ai.onnx", *(node.domain for node in onnx_files.all_nodes(model))}
    kept = [(o.domain, o.version) for o in model.opset_import if o.domain in used]
    del model.opset_import[:]
    for domain, version in kept:
        model.opset_import.add(domain=domain, version=version)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def _require_loadable(lowered: onnx.ModelProto, form: Format) -> None:
    """See that ONNX Runtime takes a graph, as far as it has kernels for it.

    Raises:
        ExportError: it does not.
    """
    with tempfile.TemporaryDirectory(prefix="plansmith-lowered-") as folder:
        try:
            open_session(onnx_files.save(lowered, Path(folder)), rewrites="none")
        except Exception as error:
            if form is BF16 and _LACKS_KERNEL in str(error):
                return  # it has checked all types by then
            raise ExportError(
                f"ONNX Runtime refuses the graph in {form.words}: {first_line(error)}",
                remedy="keep the node that it names in FP32: lowering: {keep: [...]}",
            ) from error
