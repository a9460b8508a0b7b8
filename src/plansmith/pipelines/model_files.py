"""What Triton's Python backend runs of a pipeline: a model.py, what it imports, its settings and its requirements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.config.python import SITE_VARIABLE
from plansmith.pipelines import served
from plansmith.pipelines.served.requests import SETTINGS_FILE

MODEL_FILE = "model.py"
REQUIREMENTS_FILE = "requirements.txt"
SERVED_FOLDER = "plansmith_served"

_MODEL = f'''"""{{what}} in Triton's Python backend; requirements.txt names what it needs.

{SITE_VARIABLE} names folders with Python packages, separated by ":", that go before all others: the process that
Triton starts for this file ignores PYTHONPATH. Where its own Python has the packages, nothing has to be set.
"""

import os
import site
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # Triton would take the folder for changed
known = list(sys.path)
for folder in filter(None, os.environ.get("{SITE_VARIABLE}", "").split(":")):
    site.addsitedir(folder)
sys.path[:] = [str(Path(__file__).parent), *(folder for folder in sys.path if folder not in known), *known]

{{program}}'''

_PART = f"""from {SERVED_FOLDER}.requests import PartModel  # noqa: E402 - found in the folders above
from {SERVED_FOLDER}.{{module}} import {{step}}  # noqa: E402


class TritonPythonModel(PartModel):
    \"\"\"This part.\"\"\"

    step = {{step}}
"""

_SCRIPT = f"""from {SERVED_FOLDER}.scripting import ScriptModel  # noqa: E402 - found in the folders above


class TritonPythonModel(ScriptModel):
    \"\"\"This script.\"\"\"
"""


def part_text(step: type[Any]) -> str:
    """The model.py of a part: `step` is the class in `pipeline.served` that does the work."""
    return _MODEL.format(what="A part of a pipeline", program=_PART.format(module=module_of(step), step=step.__name__))


def module_of(step: type[Any]) -> str:
    """The module of a part's class, by its name in `pipelines.served`."""
    return step.__module__.removeprefix(f"{served.__name__}.")


def script_text() -> str:
    """The model.py of a person's script, which lies beside it."""
    return _MODEL.format(what="A script that asks other models", program=_SCRIPT)


def write_model_files(
    folder: Path, text: str, *, modules: Sequence[str], settings: Mapping[str, Any], requirements: Mapping[str, str]
) -> None:
    """Write a model of the Python backend, as Triton loads it as a version.

    Args:
        folder: that of the version.
        text: of its model.py.
        modules: of `pipelines.served` that it imports, by their names in it.
        settings: JSON values that it reads.
        requirements: versions of the distributions that it needs.
    """
    packages = [f"{package}.__init__" for package, found, _ in (name.rpartition(".") for name in modules) if found]
    for name in dict.fromkeys(("__init__", *packages, *modules)):
        file = Path(*name.split(".")).with_suffix(".py")
        copy = folder / SERVED_FOLDER / file
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(Path(served.__path__[0], file).read_text())
    (folder / MODEL_FILE).write_text(text)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / REQUIREMENTS_FILE).write_text("".join(f"{name}=={number}\n" for name, number in requirements.items()))


def files_in(folder: Path) -> tuple[str, ...]:
    """The files of a version's folder, what the backend opens first."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(files, key=lambda file: file != MODEL_FILE))
