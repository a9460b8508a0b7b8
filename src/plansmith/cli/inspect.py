"""`plansmith inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def inspect_command(path: Path, as_json: bool) -> None:
    """Explain a manifest, an ONNX file, a release or a repository.

    \b
    plansmith inspect artifacts/repository
    plansmith inspect artifacts/repository.plansmith/releases/minilm/1
    plansmith inspect model.onnx --json
    """
    from plansmith.inspection import explain

    found = explain(path)
    click.echo(json.dumps(found) if as_json else "\n".join(_lines(found)))


def _lines(value: Any, indent: str = "") -> list[str]:
    """Nested facts as indented lines; numbers stay on one line, and what is empty is left out."""
    lines: list[str] = []
    for key, item in value.items():
        if item in ([], {}):
            continue
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_lines(item, indent + "  ")]
        elif isinstance(item, list) and isinstance(item[0], int):
            lines.append(f"{indent}{key}: {', '.join(map(str, item))}")
        elif isinstance(item, list):
            lines += [f"{indent}{key}:", *(f"{indent}  {entry}" for entry in item)]
        else:
            lines.append(f"{indent}{key}: {item}")
    return lines
