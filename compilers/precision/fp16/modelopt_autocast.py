"""AutoCast of NVIDIA's ModelOpt, in an interpreter that the user provides: its pins are not plansmith's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.fp16.format import FORMATS
from plansmith.compilers.precision.fp16.fp32_twin import twin
from plansmith.compilers.precision.fp16.graph import halves
from plansmith.compilers.precision.fp16.ranges import tensor_types
from plansmith.compilers.precision.graph import Graph
from plansmith.config.precision import LoweringOptions
from plansmith.data.reference import StoredCases
from plansmith.errors import EnvironmentFault, ExportError
from plansmith.records.model import Precision
from plansmith.system.process import dying_with
from plansmith.validation.coverage import UNTRIED_KERNELS

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method

CHILD = Path(__file__).with_name("modelopt_autocast_child.py")

_DEADLINE_SECONDS = 1800
_LOG_LINES = 8


def methods(
    model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, *, precision: Precision
) -> list[Method]:
    """AutoCast's way to lower a graph; none where it lowers nothing.

    Args:
        model: in FP32, its weights in memory; not changed.
        samples: calibration inputs.
        options: `autocast` is the interpreter.
        precision: FP16 or BF16.

    Raises:
        EnvironmentFault: the interpreter is not there, or has no fit ModelOpt.
        ExportError: AutoCast failed, or took too long.
    """
    method = AutocastMethod(model, samples, options, precision)
    return [method] if method.lowerable else []


class AutocastMethod:
    """Mixed precision as AutoCast chooses it; see `Method`. Every lowering is a process of its own.

    Args:
        model: in FP32, its weights in memory; not changed.
        samples: calibration inputs; AutoCast holds every tensor of every batch in memory.
        options: what a person asked for.
        precision: FP16 or BF16.
        deadline_seconds: how long one lowering may take.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        samples: StoredCases,
        options: LoweringOptions,
        precision: Precision,
        *,
        deadline_seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        self.precision = precision
        self._form = FORMATS[precision]
        self._interpreter, self._deadline_seconds = options.autocast, deadline_seconds
        self._given, self._samples, self._keeps_io = Graph(_copied(model)), samples, not options.lower_io
        self._asked = [f"(?:{pattern})$" for pattern in options.keep]  # it matches from a name's beginning
        answer, self._first = self._convert(())
        self.name = f"{self._form.words}, AutoCast of nvidia-modelopt {answer['version']}"
        self.settings: Mapping[str, str] = {
            "nvidia-modelopt": answer["version"],
            "inputs and outputs": self._form.words if options.lower_io else "FP32",
        }
        lowered, types = self._lowered(self._first), tensor_types(self._given.model)
        nodes = [n for n in self._given.model.graph.node if n.op_type != "Cast"]
        floats = [n for n in nodes if any(types.get(o) == "tensor(float)" for o in n.output)]
        self.lowerable = tuple(n.name for n in floats if n.name in lowered)
        self.kept: Mapping[str, str] = {
            n.name: self._reason(n.name, options.keep, answer["reasons"]) for n in floats if n.name not in lowered
        }
        self.not_validated: tuple[str, ...] = (UNTRIED_KERNELS[precision],)

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A lowered copy of the graph; see `Method`.

        Raises:
            ExportError: AutoCast failed, or took too long.
        """
        return _copied(self._first) if not keep else self._convert(sorted(keep))[1]

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The graph in FP32 with every result rounded."""
        return twin(lowered, self._form)

    def _convert(self, keep: Sequence[str]) -> tuple[dict[str, Any], onnx.ModelProto]:
        import onnx

        with tempfile.TemporaryDirectory(prefix="plansmith-autocast-") as scratch:
            folder = Path(scratch)
            graph, out = folder / "given", folder / "made"
            graph.mkdir()
            out.mkdir()
            request: dict[str, Any] = {
                "graph": str(onnx_files.save(self._given.model, graph)),
                "out": str(out / onnx_files.MODEL_FILE),
                "external": (graph / onnx_files.EXTERNAL_FILE).exists(),
                "arguments": {
                    "low_precision_type": str(self.precision),
                    "calibration_data": _stored(self._samples, folder / "calibration"),
                    "keep_io_types": self._keeps_io,
                    "nodes_to_exclude": [*self._asked, *(f"{re.escape(name)}$" for name in keep)],
                    "providers": ["cpu"],
                },
            }
            answer = ask(self._interpreter, request, folder, self._deadline_seconds)
            model = onnx.load(request["out"])
        # The twin reads from the graph which tensors are in sixteen bits, and not all of them say so.
        return answer, onnx.shape_inference.infer_shapes(model)

    def _lowered(self, model: onnx.ModelProto) -> set[str]:
        made = set(halves(model, self._form))
        return {n.name for n in model.graph.node if n.op_type != "Cast" and not made.isdisjoint(n.output)}

    @staticmethod
    def _reason(name: str, keep: Sequence[str], reasons: Mapping[str, str]) -> str:
        pattern = next((p for p in keep if re.fullmatch(p, name)), None)
        if pattern is not None:
            return f"the spec keeps {pattern!r}"
        return f"AutoCast: {reasons.get(name, 'left in FP32 without a word')}"


def ask(interpreter: str, request: Mapping[str, Any], folder: Path, deadline_seconds: float) -> dict[str, Any]:
    """Have the interpreter do one conversion.

    Raises:
        EnvironmentFault: it is not there, or has no fit ModelOpt.
        ExportError: it failed, or took too long.
    """
    asked, told = folder / "request.json", folder / "answer.json"
    asked.write_text(json.dumps(request))
    parent_lives = dying_with(os.getpid())
    try:
        done = subprocess.run(
            [interpreter, "-I", str(CHILD), str(asked), str(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=deadline_seconds,
            check=False,
            preexec_fn=lambda: None if parent_lives() else os._exit(1),
        )
    except OSError as error:
        raise EnvironmentFault(
            f"autocast: {interpreter} cannot be started: {error.strerror}",
            remedy="name the python of an environment with nvidia-modelopt[onnx], or leave `autocast` out",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ExportError(
            f"AutoCast did not end within {deadline_seconds:.0f} seconds",
            remedy="calibrate on fewer or shorter samples, or leave `autocast` out",
        ) from error
    sys.stderr.write(done.stdout)  # the worker's log
    answer: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        answer = json.loads(told.read_text())
    if "missing" in answer:
        raise EnvironmentFault(
            f"autocast: {interpreter} cannot do it: {answer['missing']}",
            remedy=f"{interpreter} -m pip install 'nvidia-modelopt[onnx]>=0.47'",
        )
    if "failed" in answer or not answer:
        tail = "\n".join([line for line in done.stdout.splitlines() if line.strip()][-_LOG_LINES:])
        said = answer.get("failed") or f"it ended with code {done.returncode}:\n{tail}"
        raise ExportError(
            f"AutoCast refused the graph: {said}", remedy="leave `autocast` out: plansmith's own lowering may take it"
        )
    return answer


def _stored(samples: StoredCases, folder: Path) -> str:
    """Write calibration inputs as one npz a batch; the folder.

    Raises:
        ExportError: there are none.
    """
    import numpy as np

    folder.mkdir()
    for number, case in enumerate(samples):
        arrays: dict[str, Any] = dict(case.feed)
        np.savez(folder / f"{number:06}.npz", **arrays)
    if not any(folder.iterdir()):
        raise ExportError(
            "there are no calibration inputs: AutoCast would draw random ones", remedy="name `data` in the spec"
        )
    return str(folder)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy
