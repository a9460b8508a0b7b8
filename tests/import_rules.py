"""Which module of plansmith may import what, read from the source without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "plansmith"

# Modules and packages from the bottom up: each imports only from levels below its own, never from its siblings.
LEVELS = (
    ("plansmith",),
    ("errors", "problems", "target_names", "written"),
    ("addresses",),
    ("types",),
    ("destinations", "engines", "pipeline_options"),
    ("packed", "parts"),
    ("reports",),
    ("manifest",),
    (
        "digest",
        "comparison",
        "intervals",
        "data_spec",
        "lowering_options",
        "targets",
        "testing",
        "durable",
        "external_data",
        "gpu_kinds",
        "isolation",
        "memory",
        "output_names",
        "plan_header",
        "process_groups",
        "processor",
        "repeating",
        "scratch",
        "shapes",
        "tensorrt_versions",
        "toolchain",
        "units",
    ),
    ("machine_locks", "python_options", "registries", "tensorrt_options", "triton_options"),
    ("gpus",),
    ("optimization_profiles", "plan_rules"),
    ("basis", "pipeline", "pipeline_spec", "service_changes"),
    (
        "client",
        "config",
        "data",
        "history",
        "limits",
        "pipeline_words",
        "precision_words",
        "reference",
        "process",
        "stage_cache",
    ),
    ("beside", "plan_words", "profile_inputs", "roles", "room", "timing_caches"),
    ("agreement", "task_metrics"),
    ("image_check", "measuring"),
    ("judging",),
    ("graph_answers", "held_out"),
    ("sources", "compilers", "triton", "validation", "probes", "report", "spec_targets", "spec_text"),
    ("stores",),
    ("asking", "compile_tools", "loading", "sample_sets", "stages", "trials", "spec_files", "spec_schema"),
    ("environments", "lowered_graph", "made", "plan_validation", "python_generation", "python_model"),
    ("plan_speeds",),
    ("plan_gate", "python_gate"),
    (
        "collection",
        "delivering",
        "exporting",
        "fetching",
        "given_graphs",
        "graph_taking",
        "joined_model",
        "lowering",
        "packaging",
        "recording",
        "sampling",
        "reproduction",
        "serving",
    ),
    ("joining", "provenance", "scripting"),
    ("join_steps", "plan_judging", "plan_outlook", "plan_steps", "precision_steps", "publishing", "python_steps"),
    ("graph_steps",),
    ("model_steps", "script_steps"),
    ("graph_only", "steps", "worker", "revalidation", "inspection", "doctor", "first_spec", "zoo"),
    ("fleet", "service_config"),
    ("keeping",),
    ("flows",),
    ("service",),
    ("cli",),
    ("__main__",),
)
_LEVEL = {unit: number for number, units in enumerate(LEVELS) for unit in units}

# Heavy libraries are imported inside functions only; these, or a part of one, in a few places only: modules below
# plansmith, or packages with all that is in them. `probes` may import them all: it is the child process of `plansmith
# doctor` that tells whether a library can be imported.
_PYTORCH = ("sources", "compilers", "exporting", "isolation", "sampling", "probes", "zoo")
_PLACES: dict[str, tuple[str, ...]] = {
    "torch": _PYTORCH,
    "torchvision": _PYTORCH,
    "transformers": _PYTORCH,
    "timm": _PYTORCH,
    "tensorrt": ("compilers.trt", "probes"),
    "polygraphy.backend.trt": ("compilers.trt",),
    "polygraphy.cuda": ("compilers.trt",),
    "prefect": ("flows", "probes"),
    "boto3": ("probes", "sources.mlflow_models", "stores.s3"),
    "botocore": ("probes", "sources.mlflow_models", "stores.s3"),
    "mlflow": ("sources.mlflow_models",),
    "requests": ("sources.mlflow_models",),
    "urllib3": ("sources.mlflow_models", "stores.s3"),
    "pyarrow": ("data", "probes"),
    "pynvml": ("gpus",),
    "psycopg": ("service",),
    "sqlalchemy": ("service",),
    "starlette": ("service",),
    "uvicorn": ("service",),
    "prometheus_client": ("service",),
}
HEAVY = {
    *(library.partition(".")[0] for library in _PLACES),
    "onnx",
    "onnxruntime",
    "onnxscript",
    "polygraphy",
    "tritonclient",
    "huggingface_hub",
    "safetensors",
}
HEAVY |= {"google", "PIL"}

# What Triton runs beside a model.py knows no plansmith: its modules import each other relatively.
_SERVED = "plansmith.pipeline.served"

# A flow is made by a decorator, when its module is imported.
_AT_ONCE = {("flows", "prefect")}


@dataclass(frozen=True)
class Import:
    """One import: the module in full, its line, and whether it waits until a function is called (or a type checked)."""

    target: str
    line: int
    deferred: bool


def source_files() -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module; without the stand-ins, which Triton runs and not plansmith."""
    for folder, folders, names in os.walk(PACKAGE, followlinks=True):
        folders[:] = sorted(set(folders) - {"standin", "__pycache__"})
        for path in sorted(Path(folder, name) for name in names if name.endswith(".py")):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def reached_files(*modules: str) -> set[Path]:
    """The files of modules and of all that they import, at once or later, but for types alone."""
    files = dict(source_files())
    found: set[str] = set()
    left = list(modules)
    while left:
        if (module := left.pop()) not in found:
            found.add(module)
            left += [target for target in _targets(ast.parse(files[module].read_text())) if target in files]
    return {files[module] for module in found}


def _targets(tree: ast.AST) -> Iterator[str]:
    """Dotted names of what a module imports, and of what might be modules in it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = f"{_SERVED}.{node.module}" if node.level else str(node.module)
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif not _is_type_checking(node):
            yield from _targets(node)


def violations(module: str, source: str) -> list[str]:
    """What a module of this name and source imports against the rules, in words."""
    unit = _unit(module)
    if unit not in _LEVEL:
        return [f"{module} has no place among the levels"]
    found = []
    tree = ast.parse(source)
    levels = {node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {0, 1} if _is_in(module, _SERVED) else {0}
    assert levels <= allowed, f"{module}: relative imports hide where they lead"
    for one in _imports(tree):
        library = one.target.partition(".")[0]
        where = f"{module}:{one.line} imports {one.target}"
        if library == "plansmith":
            found += [f"{where}: {problem}" for problem in _direction(unit, _unit(one.target))]
        elif library in HEAVY and not one.deferred and (unit, library) not in _AT_ONCE:
            found.append(f"{where} outside of a function")
        if not _may_import(module, one.target):
            found.append(f"{where}: not the place for it")
    return found


def _direction(unit: str, target: str) -> list[str]:
    if target == unit or _LEVEL.get(target, len(LEVELS)) < _LEVEL[unit]:
        return []
    if target not in _LEVEL:
        return ["unknown"]
    return ["sideways" if _LEVEL[target] == _LEVEL[unit] else "back"]


def _may_import(module: str, target: str) -> bool:
    """Whether all rules about a library, or about a part of it that the target is (in), name a place of the module."""
    rules = [places for library, places in _PLACES.items() if _is_in(target, library)]
    return all(any(_is_in(module, f"plansmith.{place}") for place in places) for places in rules)


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _unit(module: str) -> str:
    """The module or package directly below plansmith that a dotted name belongs to."""
    return [*module.split("."), "plansmith"][1]


def _imports(tree: ast.AST, *, deferred: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = f"{_SERVED}.{node.module}" if node.level else str(node.module)
            names = (f"{source}.{alias.name}" for alias in node.names)
            yield from (Import(name if _is_unit(name) else source, node.lineno, deferred) for name in names)
        else:
            if isinstance(node, ast.Call) and (name := _imported_by(node)) is not None:
                yield Import(name, node.lineno, deferred)
            waits = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(node)
            yield from _imports(node, deferred=deferred or waits)


def _imported_by(call: ast.Call) -> str | None:
    """The module that `import_module("…")` or `__import__("…")` names outright; None for other calls."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in {"import_module", "__import__"} or not call.args or not isinstance(call.args[0], ast.Constant):
        return None
    return str(call.args[0].value)


def _is_unit(name: str) -> bool:
    return name.count(".") == 1 and _unit(name) in _LEVEL


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
