"""The layers of a plan as the builder's verbose log has them, made into the JSON that the inspector gives.

With detailed profiling, the last verbose message of a build begins with "Layers:" and holds all that the inspector
would say of the finished plan, which takes a GPU.
"""

from __future__ import annotations

import json
import re
from typing import Any

TITLE = "Layers:\n"
"""How the message begins."""

_TENSOR = re.compile(
    r"\{ Name: (?P<Name>.*?), (?:Location: \w+, )?Dimensions: (?P<Dimensions>\[[-\d,]*\]),"
    r" (?:Strides: \[[^]]*\], StrideOrder: \[[^]]*\], )?Datatype: (?P<Datatype>\w+), Format: (?P<Format>.*?) \}"
)
_LAYER = re.compile(
    r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>\w+), Inputs: \[(?P<Inputs>(?: \{ .*? \})?)\],"
    r" (?:Constants: \[(?P<Constants>(?: \{ .*? \})?)\], )?Outputs: \[(?P<Outputs>(?: \{ .*? \})?)\], (?P<rest>.*)"
)
_TACTIC = re.compile(r"TacticName: (.*?), StreamId: ")
_METADATA = re.compile(r"Metadata: (.*)")
_IO_TENSOR = re.compile(
    r" Name: (?P<Name>.*?), IOMode: (?P<IOMode>\w+), DataType: (?P<Datatype>\w+),"
    r" Dimensions: (?P<Dimensions>\[[-\d,]*\]),"
    r" Location: \w+, IsShapeInferenceIO: (?P<IsShapeInferenceIO>\w+), ProfileInfo: (?P<ProfileInfo>.*)"
)
_PROFILE_FORMAT = re.compile(r"Format: (.*?) \}")


def inspector_document(message: str) -> dict[str, Any]:
    """The inspector's JSON, parsed, made of the message; lines that cannot be read are layers of a name alone."""
    layers, _, tensors = message.removeprefix(TITLE).partition("\n\nI/O Tensors:\n")
    return {
        "Layers": [_layer(line) for line in layers.splitlines() if line],
        "I/O Tensors": [_io_tensor(found) for line in tensors.splitlines() if (found := _IO_TENSOR.match(line))],
    }


def _layer(line: str) -> dict[str, Any] | str:
    found = _LAYER.match(line)
    if found is None:
        return line
    tactic, metadata = _TACTIC.search(found["rest"]), _METADATA.search(found["rest"])
    return {
        "Name": found["Name"],
        "LayerType": found["LayerType"],
        **{side: _tensors(found[side] or "") for side in ("Inputs", "Constants", "Outputs")},
        "TacticName": tactic[1] if tactic else "",
        "Metadata": metadata[1] if metadata else "",
    }


def _tensors(text: str) -> list[dict[str, Any]]:
    return [found.groupdict() | {"Dimensions": json.loads(found["Dimensions"])} for found in _TENSOR.finditer(text)]


def _io_tensor(found: re.Match[str]) -> dict[str, Any]:
    return {
        **found.groupdict(),
        "Dimensions": json.loads(found["Dimensions"]),
        "IsShapeInferenceIO": found["IsShapeInferenceIO"] == "true",
        "ProfileInfo": [{"Format": one} for one in _PROFILE_FORMAT.findall(found["ProfileInfo"])],
    }
