"""Every block of code in a page is taken by what reads its kind; a block that nothing claims is a fault."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator

import plansmith
from plansmith.config.loader import read_specs, spec_schema
from plansmith.config.spec import ModelSpec
from plansmith.fleet.zoo.entries import read_list
from plansmith.loadtest.plan_file import read_plan
from plansmith.pipelines.served.chains import Refused
from plansmith.pipelines.served.scripting import load_script
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.prices import read_prices
from plansmith.signing.policy import read_policy
from plansmith.triggers.configuration import read_triggered_file

from .support.certificates import KeyRing
from .support.documentation import DOCUMENTS, ROOT, Block, all_blocks, code_blocks, read_page
from .test_documented_commands import SHELL

LANGUAGES = {*SHELL, "caddy", "json", "python", "text", "yaml"}
"""Text is pictures, and lines that a command prints; Caddy's files are Caddy's."""
READERS_OWN = {"batch", "model", "module"}
ENDPOINT = {
    "name": "minilm",
    "region": "us-east-1",
    "role": "arn:aws:iam::123456789012:role/endpoint",
    "bucket": "s3://models/endpoints",
    "variants": [{"models": ["minilm"], "instance_type": "ml.m5.large"}],
}
SERVICE = {
    "specs": ["configs/models"],
    "pools": {"local": {"create": True}},
    "triggers": {
        "registries": {"models": {"type": "mlflow", "tracking_uri": "https://mlflow.example.com"}},
        "rules": [{"registry": "models", "model": "minilm", "when": "created", "spec": "minilm.yaml"}],
    },
}


def read_model_specs(path: Path) -> None:
    """Read specs as commands do, and as an editor with the schema does."""
    read_specs(path, {})
    Draft202012Validator(spec_schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def read_signature_policy(path: Path) -> None:
    """Read a signature policy whose files are there."""
    ring = KeyRing(path.parent)
    ring.key("release")
    ring.certificate("ca", "ca", is_authority=True)
    (path.parent / "private.json").write_text("{}")
    read_policy(path)


def has(*keys: str) -> Callable[[dict[str, Any]], bool]:
    return lambda values: not values.keys().isdisjoint(keys)


KINDS: tuple[tuple[Callable[[Path], object], Callable[[dict[str, Any]], bool], dict[str, Any]], ...] = (
    (read_prices, has("usd_per_hour"), {}),
    (read_signature_policy, has("revoked"), {}),
    (read_plan, has("stages", "phases"), {}),
    (read_list, lambda values: not {"timm", "model_type"}.isdisjoint(values.get("models", [{}])[0]), {}),
    (read_endpoint, has("bucket"), {}),
    (read_endpoint, has("variants", "recommendation_job"), ENDPOINT),
    (read_triggered_file, has("specs"), {}),
    (read_triggered_file, has("flows", "triggers"), SERVICE),
    (read_model_specs, has("source", "models"), {}),
    (read_model_specs, lambda values: values.keys() <= ModelSpec.model_fields.keys(), {"source": "hf:./model"}),
)
"""What reads a YAML file, how a block of its kind is known, and what is added to one that is a part of a file."""


def blocks_in(language: str) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in all_blocks() if block.language == language]


def test_languages_are_claimed() -> None:
    """A block is in a language that some test here reads, or in none that could be tested."""
    assert {block.language for block in all_blocks()} <= LANGUAGES


@pytest.mark.parametrize("block", blocks_in("yaml"))
def test_yaml_is_read(block: Block, tmp_path: Path) -> None:
    """A block of YAML is read by the loader of its kind, with the keys that it leaves out added."""
    values = yaml.safe_load(block.code)
    read, base = next((read, base) for read, is_kind, base in KINDS if is_kind(values))
    (tmp_path / "documented.yaml").write_text(yaml.safe_dump(_merge(base, values)) if base else block.code)
    (tmp_path / "request.json").write_text("{}")
    read(tmp_path / "documented.yaml")


def _merge(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    both = {key for key in base.keys() & values.keys() if isinstance(values[key], dict)}
    return {**base, **values, **{key: _merge(base[key], values[key]) for key in both}}


@pytest.mark.parametrize("block", blocks_in("json"))
def test_json_is_valid(block: Block) -> None:
    json.loads(block.code)


PYTHON = {path: code_blocks(path.read_text(encoding="utf-8"), "python") for path in DOCUMENTS}


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if PYTHON[path]], ids=lambda path: path.stem)
def test_python_names_exist(path: Path) -> None:
    """The Python of a page, read as one program, imports what plansmith has and calls it with arguments that it takes.

    All other names are its own, or stand for what a reader has.
    """
    nodes = list(ast.walk(ast.parse("\n".join(PYTHON[path]))))
    names: dict[str, Any] = {"plansmith": plansmith}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("plansmith"):
            module = importlib.import_module(str(node.module).replace("plansmith_served", "plansmith.pipelines.served"))
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Call) and (function := _resolve(node.func, names)) is not None:
            with suppress(ValueError):  # exceptions of C have no signature
                inspect.signature(function).bind(*node.args, **{str(keyword.arg): None for keyword in node.keywords})
    bound = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    bound |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {str(node.name) for node in nodes if isinstance(node, ast.FunctionDef | ast.ExceptHandler)}
    assert {node.id for node in nodes if isinstance(node, ast.Name)} - bound - vars(builtins).keys() <= READERS_OWN


def _resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a call is of, where that is plansmith's."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "plansmith":
        return getattr(plansmith, node.attr)
    return names.get(node.id) if isinstance(node, ast.Name) else None


def test_documented_script_decides(tmp_path: Path) -> None:
    """The script of the page on pipelines answers with the topic, and refuses where the mood is unclear."""
    (code,) = code_blocks(read_page("pipelines"), "python")
    (tmp_path / "route.py").write_text(code)
    script = load_script(tmp_path / "route.py")
    labels = np.array([[b"sport", b"news"]], object)

    def models(score: float) -> dict[str, Callable[..., dict[str, Any]]]:
        return {"main": lambda **_: {"score": np.array([[score]])}, "topics": lambda **_: {"label": labels}}

    inputs = {"text": np.array([[b"a goal"]], object)}
    assert script.answer(inputs, models(0.9))["label"].tolist() == [[b"sport"]]
    with pytest.raises(Refused, match="too unclear"):
        script.answer(inputs, models(0.2))


def test_extras_exist() -> None:
    """`pip install 'plansmith[…]'` names extras that there are."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = {name for names in re.findall(r"plansmith\[([a-z0-9,-]+)\]", text) for name in names.split(",")}
    assert "compile" in named
    assert named <= extras.keys()
