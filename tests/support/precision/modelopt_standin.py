"""A stand-in for AutoCast of nvidia-modelopt: its signature is that of 0.47.0, and it converts a few nodes by itself.

`write` lays it out as a package and gives an interpreter that finds it.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

VERSION = "0.47.0"

SIGNATURE = [
    "onnx_path",
    "low_precision_type",
    "nodes_to_exclude",
    "op_types_to_exclude",
    "nodes_to_include",
    "op_types_to_include",
    "data_max",
    "init_max",
    "keep_io_types",
    "calibration_data",
    "custom_rule",
    "init_conversion_max_bytes",
    "providers",
    "trt_plugins",
    "trt_plugins_precision",
    "max_depth_of_reduction",
    "opset",
    "use_standalone_type_inference",
]
"""The parameters of `modelopt.onnx.autocast.convert_to_mixed_precision`; the test with the real package checks them."""

_AUTOCAST = '''
import os, re, time
import numpy as np, onnx
from .logging_config import logger

def convert_to_mixed_precision({parameters}):
    """Every node that may be is put between casts."""
    assert low_precision_type in ("fp16", "bf16") and providers == ["cpu"] and isinstance(keep_io_types, bool)
    batches = [np.load(os.path.join(calibration_data, f)) for f in sorted(os.listdir(calibration_data))]
    model = onnx.load(onnx_path)
    names = sorted(v.name for v in model.graph.input)
    assert batches and all(sorted(b.files) == names for b in batches), "one npz a batch, an array an input"
    {behaviour}
    to, nodes = (10 if low_precision_type == "fp16" else 16), []
    for node in model.graph.node:
        if any(re.match(pattern, node.name) for pattern in nodes_to_exclude):
            logger.info("Skipping node %s: DisabledNodeNameRegexRule", node.name)
        elif node.op_type == "Exp":
            logger.info("Skipping node %s: reference IO out of range", node.name)
        else:
            for i, name in enumerate(list(node.input)):
                node.input[i] = f"{{name}}_{{node.name}}"
                nodes.append(onnx.helper.make_node("Cast", [name], [node.input[i]], to=to))
            made, node.output[0] = node.output[0], f"{{node.output[0]}}_low"
            nodes += [node, onnx.helper.make_node("Cast", [node.output[0]], [made], to=1)]
            continue
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model
'''


def write(folder: Path, *, behaviour: str = "pass", parameters: list[str] | None = None) -> str:
    """An interpreter that has the stand-in.

    Args:
        folder: where both go.
        behaviour: a statement that runs before the conversion.
        parameters: what the conversion takes, where not the real ones.
    """
    package = folder / "site" / "modelopt" / "onnx" / "autocast"
    package.mkdir(parents=True)
    (package.parents[1] / "__init__.py").write_text(f"__version__ = {VERSION!r}\n")
    (package.parent / "__init__.py").write_text("")
    (package / "logging_config.py").write_text("import logging\nlogger = logging.getLogger('modelopt.onnx.autocast')\n")
    named = ", ".join(f"{name}=None" for name in parameters or SIGNATURE)
    (package / "__init__.py").write_text(_AUTOCAST.format(parameters=named, behaviour=behaviour))
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(folder / 'site')!r}); sys.argv = sys.argv[1:];"
        " runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" -c "{start}" "$2" "$3" "$4"\n')
    interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
    return str(interpreter)
