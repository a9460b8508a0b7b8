"""A Dockerfile as instructions: enough of one to hold it against the rest of the project; hadolint judges its style."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"
COMPOSE_SYNC = ROOT / "docker" / "compose.sync.yaml"
COMPOSE_TRIGGERS = ROOT / "docker" / "compose.triggers.yaml"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Args:
        name: such as RUN.
        text: what follows, on one line.
    """

    name: str
    text: str

    def command(self) -> list[str]:
        """The command of a CMD, ENTRYPOINT or HEALTHCHECK, which are lists in JSON here."""
        values = json.loads(self.text[self.text.index("[") :])
        assert isinstance(values, list)
        return values


@dataclass(frozen=True)
class Stage:
    """What lies between one FROM and the next; `base` still has its variables."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def last(self, name: str) -> Instruction:
        """The one that counts of those that may stand once."""
        return [instruction for instruction in self.instructions if instruction.name == name][-1]

    def all(self, name: str) -> list[str]:
        """What follows each instruction of a name."""
        return [instruction.text for instruction in self.instructions if instruction.name == name]


def arguments(instructions: tuple[Instruction, ...]) -> dict[str, str]:
    """The build arguments and their defaults, empty where they have none."""
    declarations = (instruction.text.partition("=") for instruction in instructions if instruction.name == "ARG")
    return {name: default for name, _, default in declarations}


def read(file: Path = DOCKERFILE) -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first stage, and the stages by name."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    parts = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    instructions = [Instruction(name, text.strip()) for name, _, text in parts]
    starts = [number for number, instruction in enumerate(instructions) if instruction.name == "FROM"]
    stages = {}
    for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        base, _, name = instructions[start].text.partition(" AS ")
        stages[name] = Stage(name, base, tuple(instructions[start + 1 : end]))
    return arguments(tuple(instructions[: starts[0]])), stages


def filled(text: str, values: dict[str, str]) -> str:
    """A text with its ${variables} filled in, those in their values too."""
    result = re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)
    return filled(result, values) if "${" in result else result
