"""Programs that Triton's Python backend does not load, or that answer no request, are found without being run."""

from __future__ import annotations

import io
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from plansmith.config.targets import load_target
from plansmith.triton.checker import archive

from ....support.checker.backend_rules import broken, findings

if TYPE_CHECKING:
    from ....support.checker.written import Written

CONFIG = 'backend: "python" max_batch_size: 8\n'
MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        return auto_complete_model_config

    def initialize(self, args):
        pass

    def execute(self, requests):
        return []
"""
INITIALIZE = "    def initialize(self, args):\n        pass\n"
EXECUTE = "    def execute(self, requests):\n        return []\n"
COMPLETE = "    @staticmethod\n    def auto_complete_config(auto_complete_model_config):"


def without(part: str, instead: str = "") -> str:
    assert part in MODEL
    return MODEL.replace(part, instead)


MISTAKES = {
    "another class": (MODEL.replace("TritonPythonModel", "Model"), "class", 0),
    "no class": ("import os\n", "class", 0),
    "a class in a function": ("def make():" + MODEL.replace("\n", "\n    ") + "\n", "class", 0),
    "no execute": (without(EXECUTE), "execute", 2),
    "an execute of nothing": (without("(self, requests)", "(self)"), "signature", 10),
    "an execute that wants more": (without("(self, requests)", "(self, requests, more)"), "signature", 10),
    "an initialize of nothing": (without("(self, args)", "(self)"), "signature", 7),
    "an initialize that wants words": (without("(self, args)", "(self, args, *, word)"), "signature", 7),
    "a completion with self": (
        without(COMPLETE, "    def auto_complete_config(self, auto_complete_model_config):"),
        "signature",
        3,
    ),
}


@pytest.mark.parametrize(("program", "rule", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_found_in_line(program: str, rule: str, line: int, written: Written) -> None:
    """A mistake is found in its line."""
    written.add("m", CONFIG, {"1/model.py": program})
    (finding,) = findings(written.root)
    assert (finding.rule, finding.place, finding.severity) == (f"python.{rule}", "m/1/model.py", "error")
    assert finding.line == line


INDENTED = MODEL.replace("\n", "\n    ")
SOUND = {
    "all as it is": MODEL,
    "no completion and nothing to begin with": without(INITIALIZE).replace("    @staticmethod\n", ""),
    "any arguments": without("(self, requests)", "(self, *args, **more)"),
    "a default": without("(self, requests)", "(self, requests, more=None)"),
    "a completion on the class": without("@staticmethod", "@classmethod").replace(
        "auto_complete_config(", "auto_complete_config(cls, "
    ),
    "a class from elsewhere": "from mine import TritonPythonModel\n",
    "a class by another name": "from mine import Model as TritonPythonModel\n",
    "all of another module": "from mine import *\n",
    "a name for a class": "import mine\nTritonPythonModel = mine.Model\n",
    "a class of a base": "import mine\nclass TritonPythonModel(mine.Model):\n    pass\n",
    "a class in a branch": f"if True:{INDENTED}\n",
    "a class in a try": f"try:\n    import torch\nexcept ImportError:\n    torch = None\nelse:{INDENTED}\n",
    "an execute that is given later": without(EXECUTE) + "\nTritonPythonModel.execute = lambda self, requests: []\n",
    "an execute that is a name": without(EXECUTE, "    execute = print\n"),
    "an execute that waits": without("def execute", "async def execute"),
    "an execute behind a decorator": without("    def execute(self, requests)", "    @timed(1)\n    def execute(self)"),
    "a text with a strange escape": MODEL + 'PATTERN = "\\d"\n',
}


@pytest.mark.parametrize("program", SOUND.values(), ids=SOUND.keys())
def test_what_may_load_is_passed(program: str, written: Written) -> None:
    written.add("m", CONFIG, {"1/model.py": program})
    assert broken(written.root) == set()


def test_renamed_program_looked_at(written: Written) -> None:
    """A program under another name is looked at."""
    written.add("m", CONFIG + 'default_model_filename: "run.py"', {"1/run.py": "x = 1", "1/model.py": MODEL})
    (finding,) = findings(written.root)
    assert finding.place == "m/1/run.py"


def test_newer_syntax_is_no_error(written: Written) -> None:
    """A syntax that is newer than this Python is no error."""
    written.add("m", CONFIG, {"1/model.py": MODEL + "\nnewer syntax\n"})
    newer = load_target("triton-26.08").model_copy(update={"python": f"3.{sys.version_info.minor + 1}"})
    same = load_target("triton-26.08").model_copy(update={"python": f"3.{sys.version_info.minor}"})
    assert broken(written.root, target=newer) == {"python.newer-syntax"}
    (finding,) = findings(written.root, target=same)
    assert (finding.rule, finding.place, finding.severity) == ("python.syntax", "m/1/model.py", "error")
    assert finding.line == MODEL.count("\n") + 2


def test_untargeted_program_may_need_newer_python(written: Written) -> None:
    """Without a target, a program that cannot be parsed may need a newer Python."""
    written.add("m", CONFIG, {"1/model.py": MODEL + "\ntype Rows = list[int]\nnewer syntax\n"})
    (finding,) = findings(written.root)
    assert (finding.rule, finding.severity) == ("python.unsure-syntax", "warning")
    assert "may need a newer one" in finding.message
    assert "--target" in finding.remedy


def environment(path: str) -> str:
    return f'{CONFIG}parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n'


def packed(*names: str) -> bytes:
    """An archive of files with these names, each of one byte."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in names or ("bin/activate", "lib/python3.12/site-packages/a.py"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b" "))
    return content.getvalue()


ENVIRONMENTS: dict[str, tuple[str, list[str], set[str]]] = {
    "an archive in the folder": ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", ["env.tar.gz"], set()),
    "an archive beside it": ("$$TRITON_MODEL_DIRECTORY/../env.tar.gz", ["env.tar.gz"], {"environment"}),
    "none (R20)": ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", [], {"environment"}),
    "a folder of the target's Python": (
        "$$TRITON_MODEL_DIRECTORY/env",
        ["env/bin/activate", "env/lib/python3.12/"],
        set(),
    ),
    "a folder of another Python": (
        "$$TRITON_MODEL_DIRECTORY/env",
        ["env/bin/activate", "env/lib/python3.10/"],
        {"environment-version"},
    ),
    "a folder of another Python and its stub": (
        "$$TRITON_MODEL_DIRECTORY/env",
        ["env/bin/activate", "env/lib/python3.10/", "triton_python_backend_stub"],
        set(),
    ),
    "a folder that cannot be activated": ("$$TRITON_MODEL_DIRECTORY/env", ["env/lib/"], {"environment"}),
    "a file that is no archive": ("$$TRITON_MODEL_DIRECTORY/env.yaml", ["env.yaml"], {"environment"}),
    "a place on the server": ("/opt/env.tar.gz", [], {"environment-outside"}),
    "a place of nowhere": ("env.tar.gz", ["env.tar.gz"], {"environment-outside"}),
}


@pytest.mark.parametrize(("path", "files", "rules"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_environment_must_exist(path: str, files: list[str], rules: set[str], written: Written) -> None:
    """An environment has to be there."""
    contents = {name: packed() if name.endswith(".tar.gz") else b"" for name in files}
    written.add("m", environment(path), {"1/model.py": MODEL, **contents})
    assert broken(written.root, target=load_target("triton-26.08")) == {f"python.{rule}" for rule in rules}


ARCHIVES = {
    "of the target's Python": (packed(), set()),
    "of conda-pack": (packed("./bin/activate", "./lib/python3.12/os.py"), set()),
    "of another Python": (packed("bin/activate", "lib/python3.11/site-packages/a.py"), {"environment-version"}),
    "that cannot be activated": (packed("lib/python3.12/site-packages/a.py"), {"environment"}),
    "that is cut off": (packed()[:60], {"environment"}),
    "that is none": (b"conda", {"environment"}),
    "that is empty": (b"", {"environment"}),
}


@pytest.mark.parametrize(("content", "rules"), ARCHIVES.values(), ids=ARCHIVES.keys())
def test_an_archive_is_looked_into(content: bytes, rules: set[str], written: Written) -> None:
    files: dict[str, bytes | str] = {"1/model.py": MODEL, "env.tar.gz": content}
    written.add("m", environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), files)
    assert broken(written.root, target=load_target("triton-26.08")) == {f"python.{rule}" for rule in rules}
    assert "python.environment-version" not in broken(written.root)  # without a target nobody knows


def test_own_stub_needs_matching_archive(written: Written) -> None:
    """A stub of its own goes with an archive of another Python."""
    content = packed("bin/activate", "lib/python3.11/site-packages/a.py")
    files: dict[str, bytes | str] = {"1/model.py": MODEL, "env.tar.gz": content, "triton_python_backend_stub": b""}
    written.add("m", environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), files)
    assert broken(written.root, target=load_target("triton-26.08")) == set()


def test_large_archive_not_read_through(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large archive is not read through."""
    monkeypatch.setattr(archive, "_MOST_BYTES", 2)
    content = packed("a.py", "b.py", "c.py", "bin/activate")
    written.add("m", environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), {"1/model.py": MODEL, "env.tar.gz": content})
    assert broken(written.root, target=load_target("triton-26.08")) == set()


def test_other_backends_left_alone(written: Written) -> None:
    """Models of other backends are left alone."""
    written.add("m", 'backend: "custom"', {"1/model.py": "not python"})
    assert broken(written.root) == set()
