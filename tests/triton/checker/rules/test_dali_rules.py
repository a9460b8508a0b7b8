"""Pipelines that Triton's DALI backend does not load are found without DALI."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from plansmith.config.targets import load_target

from ....support.checker.backend_rules import broken, findings

if TYPE_CHECKING:
    from ....support.checker.written import Written

CONFIG = """backend: "dali" max_batch_size: 32
input { name: "encoded" data_type: TYPE_UINT8 dims: [ -1 ] }
"""
PROGRAM = """
import nvidia.dali as dali
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@dali.pipeline_def(batch_size=32, num_threads=2, device_id=0)
def pipeline():
    encoded = dali.fn.external_source(device="cpu", name="encoded", ndim=1)
    return dali.fn.decoders.image(encoded, device="mixed")
"""
FILES: dict[str, bytes | str] = {"1/model.dali": b"serialised"}

FOUND: dict[str, tuple[str, dict[str, bytes | str], set[str]]] = {
    "a serialised pipeline": (CONFIG, FILES, set()),
    "one under another name": (CONFIG + 'default_model_filename: "resize.dali"', {"1/resize.dali": b"x"}, set()),
    "one in Python": (CONFIG, {"1/dali.py": PROGRAM}, set()),
    "one in Python under another name": (
        CONFIG + 'default_model_filename: "resize.py"',
        {"1/resize.py": PROGRAM},
        set(),
    ),
    "none (R20)": (CONFIG, {"1/model.py": PROGRAM}, {"model-file"}),
    "none under its name": (CONFIG + 'default_model_filename: "resize.dali"', FILES, {"model-file"}),
    "no decorated function": (CONFIG, {"1/dali.py": PROGRAM.replace("@autoserialize\n", "")}, {"autoserialize"}),
    "two decorated functions": (CONFIG, {"1/dali.py": PROGRAM + PROGRAM}, {"autoserialize"}),
    "an input of another name": (CONFIG.replace("encoded", "image"), {"1/dali.py": PROGRAM}, {"input-name"}),
    "an input whose name is not written out": (
        CONFIG,
        {"1/dali.py": PROGRAM.replace('name="encoded"', "name=NAME")},
        set(),
    ),
    "no inputs, which the backend completes": ('backend: "dali"', {"1/dali.py": PROGRAM}, set()),
    "a decoder on the GPU": (CONFIG, {"1/dali.py": PROGRAM.replace('"mixed"', '"gpu"')}, {"decoder-device"}),
    "a decoder on the CPU": (CONFIG, {"1/dali.py": PROGRAM.replace('"mixed"', '"cpu"')}, set()),
    "several instances": (CONFIG + "instance_group { count: 2 }", FILES, {"instances"}),
    "one instance": (CONFIG + "instance_group { count: 1 }", FILES, set()),
}


@pytest.mark.parametrize(("config", "files", "rules"), FOUND.values(), ids=FOUND.keys())
def test_backend_refusals_found_alone(
    config: str, files: dict[str, bytes | str], rules: set[str], written: Written
) -> None:
    """What the backend refuses is found, and nothing else."""
    written.add("m", config, files)
    assert broken(written.root) == {f"dali.{rule}" for rule in rules}


def test_unparsable_program_wrong_for_known_python(written: Written) -> None:
    """A program that cannot be parsed is wrong where it is known which Python runs it."""
    written.add("m", CONFIG, {"1/dali.py": "def"})
    same = load_target("triton-26.08").model_copy(update={"python": f"3.{sys.version_info.minor}"})
    assert broken(written.root, target=same) == {"dali.autoserialize"}
    assert broken(written.root) == {"python.unsure-syntax"}


def test_program_finding_names_line(written: Written) -> None:
    """A finding in a program names its line."""
    written.add("m", CONFIG, {"1/dali.py": PROGRAM.replace('"mixed"', '"gpu"')})
    (finding,) = findings(written.root)
    assert (finding.place, finding.line) == ("m/1/dali.py", 9)
