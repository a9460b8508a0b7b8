"""Runs in an interpreter of the user's, with nvidia-modelopt: one conversion, told and answered in JSON files.

Nothing of plansmith is imported here: that interpreter need not have it. Called as
`python modelopt_autocast_child.py <request.json> <answer.json>`.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

_SKIPPED = re.compile(r"Skipping node (?P<node>\S+): (?P<reason>.+)", re.DOTALL)


class Reasons(logging.Handler):
    """Notes what AutoCast logs of the nodes that it leaves."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take one line of the log."""
        match = _SKIPPED.search(record.getMessage())
        if match:
            self.found.setdefault(match["node"], " ".join(match["reason"].split()))


def main(request: Path, answer: Path) -> None:
    """Do what the request says: the converted graph goes where it says, the rest into the answer."""
    answer.write_text(json.dumps(_convert(json.loads(request.read_text()))))


def _convert(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        import modelopt
        import onnx
        from modelopt.onnx import autocast
    except ImportError as error:
        return {"missing": str(error).splitlines()[0]}
    from modelopt.onnx.autocast.logging_config import logger

    unknown = asked["arguments"].keys() - inspect.signature(autocast.convert_to_mixed_precision).parameters.keys()
    if unknown:
        return {"missing": f"AutoCast of nvidia-modelopt {modelopt.__version__} does not know {', '.join(unknown)}"}
    reasons = Reasons()
    logger.addHandler(reasons)
    logger.setLevel(logging.INFO)
    try:
        model = autocast.convert_to_mixed_precision(asked["graph"], **asked["arguments"])
    except Exception as error:  # whatever it is, the parent tells of it; the traceback goes to the log
        logging.getLogger(__name__).exception("AutoCast failed")
        return {"failed": f"{type(error).__name__}: {error}", "version": modelopt.__version__}
    onnx.save(model, asked["out"], save_as_external_data=asked["external"], location="model.onnx.data")
    return {"version": modelopt.__version__, "onnx": onnx.__version__, "reasons": reasons.found}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
