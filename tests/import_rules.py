"""Which module of plansmith may import what, read from the source without running it."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "plansmith"

# Modules and packages from the bottom up: each imports only from ranks below its own, never from its siblings. Folders
# of one package may import from one another, as long as none leads back to itself.
RANKS = (
    ("plansmith",),
    ("errors", "testing"),
    ("records",),
    ("formatting",),
    ("system",),
    ("config",),
    ("data", "triggers"),
    ("sources", "validation"),
    ("compilers", "report"),
    ("pipelines",),
    ("triton",),
    ("client", "stores"),
    ("steps",),
    ("fleet",),
    ("flows",),
    ("cli",),
    ("__main__",),
)
_RANK = {unit: number for number, units in enumerate(RANKS) for unit in units}

# Heavy libraries are imported inside functions only; these, or a part of one, in a few places only: modules below
# plansmith, or packages with all that is in them. The probes may import them all: they are the child process of
# `plansmith doctor` that tells whether a library can be imported.
_PROBES = "cli.doctor.probes"
_PYTORCH = ("sources", "compilers", "pipelines", "steps.worker.sampling", _PROBES, "fleet.zoo")
_PLACES: dict[str, tuple[str, ...]] = {
    "torch": _PYTORCH,
    "torchvision": _PYTORCH,
    "transformers": _PYTORCH,
    "timm": _PYTORCH,
    "tensorrt": ("compilers.trt.api", _PROBES),
    "polygraphy.backend.trt": ("compilers.trt.api",),
    "polygraphy.cuda": ("compilers.trt.api",),
    "prefect": ("flows", _PROBES),
    "boto3": (_PROBES, "sources.mlflow", "stores.backend.s3"),
    "botocore": (_PROBES, "sources.mlflow", "stores.backend.s3"),
    "mlflow": ("sources.mlflow",),
    "requests": ("sources.mlflow",),
    "urllib3": ("sources.mlflow", "stores.backend.s3"),
    "pyarrow": ("data", _PROBES),
    "pynvml": ("system.gpus",),
    "psycopg": ("triggers.inbox",),
    "sqlalchemy": ("triggers.inbox",),
    "starlette": ("triggers",),
    "uvicorn": ("triggers",),
    "prometheus_client": ("triggers",),
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
_SERVED = "plansmith.pipelines.served"

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


def module_arrows() -> dict[str, set[str]]:
    """Which modules each module imports, at once, later or for types."""
    files = dict(source_files())
    return {module: set(_arrows(module, path, files)) for module, path in files.items()}


def _arrows(module: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            source = f"{_SERVED}.{node.module}" if node.level else str(node.module)
            found = {name if (name := f"{source}.{alias.name}") in files else source for alias in node.names}
            yield from (found & files.keys()) - {"plansmith", module}


def folder_arrows(modules: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Which folders import from which others beside them in the same folder."""
    found = defaultdict(set)
    for module, targets in modules.items():
        for target in targets:
            own, other = module.split("."), target.split(".")
            shared = next(n for n, (a, b) in enumerate(zip([*own, ""], [*other, ""], strict=False)) if a != b)
            folders = [".".join(parts[: shared + 1]) for parts in (own, other)]
            if all((PACKAGE.parent / folder.replace(".", "/")).is_dir() for folder in folders):
                found[folders[0]].add(folders[1])
    return dict(found)


def first_circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """Names that lead back to themselves, the first of them at both ends; none where nothing does."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def violations(module: str, source: str) -> list[str]:
    """What a module of this name and source imports against the rules, in words."""
    unit = _unit(module)
    if unit not in _RANK:
        return [f"{module} has no place among the ranks"]
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
    if target == unit or _RANK.get(target, len(RANKS)) < _RANK[unit]:
        return []
    if target not in _RANK:
        return ["unknown"]
    return ["sideways" if _RANK[target] == _RANK[unit] else "back"]


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
    return name.count(".") == 1 and _unit(name) in _RANK


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
