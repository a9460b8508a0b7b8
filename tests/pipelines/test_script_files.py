"""What is wrong with a script is told from its file, before any model is made, or with its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.config.pipeline import PipelineSpec
from plansmith.config.spec import ModelSpec
from plansmith.errors import UsageError
from plansmith.pipelines.build import outputs_of
from plansmith.pipelines.served.scripting import load_script
from plansmith.records.model import Tensor
from plansmith.steps.script import script_of

ANSWER = "\ndef answer(inputs, models):\n    return models['main'](**inputs)\n"
OWN = (Tensor(name="label", dtype="string", dims=("batch", 3)),)


def find_script(folder: Path, text: str) -> Path | None:
    (folder / "route.py").write_text(text)
    return script_of(ModelSpec(source="hf:./mood", pipeline=PipelineSpec(script="route.py")), folder)


BRINGS = {
    "a package": ("import torch", "line 1, imports torch,"),
    "a part of one": ("import json\nfrom pandas.io import parsers", "line 2, imports pandas,"),
    "one in a function": ("def load():\n    import scipy.special", "line 2, imports scipy,"),
    "a file beside it": ("from . import words", "line 1, imports from its own folder,"),
}


@pytest.mark.parametrize(("text", "words"), BRINGS.values(), ids=BRINGS.keys())
def test_script_import_missing_on_server_refused(text: str, words: str, tmp_path: Path) -> None:
    """A script that imports what a server lacks is refused."""
    with pytest.raises(UsageError) as refused:
        find_script(tmp_path, text + ANSWER)
    assert f"{tmp_path / 'route.py'}, {words}" in refused.value.message
    assert refused.value.remedy


def test_script_may_import_server_modules(tmp_path: Path) -> None:
    """A script may import what a server has and try others."""
    text = "import os.path, numpy.linalg\nfrom plansmith_served.scripting import Refused\n"
    tried = "try:\n    import torch\nexcept ImportError:\n    torch = None\n"
    assert find_script(tmp_path, text + tried + ANSWER) == tmp_path / "route.py"


@pytest.mark.parametrize("dtype", ["float33", "str", "fp32"])
def test_unknown_dtype_lists_known_ones(dtype: str, tmp_path: Path) -> None:
    """A dtype that nobody has is told with those that there are."""
    (tmp_path / "route.py").write_text(f"OUTPUTS = {{'score': ('{dtype}', ['batch', 1])}}\n{ANSWER}")
    module = load_script(tmp_path / "route.py")
    with pytest.raises(UsageError, match=f"gives score the dtype '{dtype}'") as refused:
        outputs_of(module, OWN, "route.py")
    assert refused.value.remedy is not None
    assert "float32" in refused.value.remedy
    assert "string" in refused.value.remedy


def test_silent_script_answers_like_model(tmp_path: Path) -> None:
    """A script that says nothing answers as the model does."""
    (tmp_path / "route.py").write_text(ANSWER)
    assert outputs_of(load_script(tmp_path / "route.py"), OWN, "route.py") == OWN
