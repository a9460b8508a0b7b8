"""Checker: applies every rule to every model of a repository."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from plansmith.config.targets import Target, load_target
from plansmith.errors import RepositoryError
from plansmith.formatting import suggest_names
from plansmith.records.release import CONFIG_FILE, Package
from plansmith.triton.checker.findings import Finding, Rule, Severity
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder
from plansmith.triton.checker.reader import (
    NO_VERSIONS,
    folders_of,
    is_plain,
    read_models,
    read_package,
    target_name,
    variants_of,
)
from plansmith.triton.checker.rules import dynamo as dynamo_rules
from plansmith.triton.checker.rules import sagemaker as sagemaker_rules
from plansmith.triton.checker.rules.backends import dali, members, onnxruntime, python, tensorrt
from plansmith.triton.checker.rules.core import batching, core, file, instance, layout, sequence, tensor, text, warmup
from plansmith.triton.checker.rules.ensemble import rules
from plansmith.triton.repository.ensembles import repositories_in

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""The worst first."""

_MODULES: tuple[RuleModule, ...] = (
    layout,
    text,
    core,
    batching,
    tensor,
    instance,
    sequence,
    file,
    warmup,
    onnxruntime,
    tensorrt,
    python,
    dali,
    rules,
    members,
    sagemaker_rules,
    dynamo_rules,
)
_OF_THE_WHOLE: tuple[RepositoryRules, ...] = (layout, sagemaker_rules)


class RuleModule(Protocol):
    """A module of rules.

    `RULES`: all that `check`, and `check_whole` where it has one, may yield findings of.
    """

    RULES: tuple[Rule, ...]

    def check(self, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
        """Yield the rule violations of one model."""


class RepositoryRules(Protocol):
    """A module with rules that also apply to a repository as a whole, such as its number of models."""

    def check_whole(self, surroundings: CheckContext) -> Iterator[Finding]:
        """Yield the rule violations of the whole repository; called once per check."""


def all_rules() -> tuple[Rule, ...]:
    """Return all rules of the checker, in module order."""
    return tuple(rule for module in _MODULES for rule in module.RULES)


def check_repository(
    root: Path,
    *,
    models: Sequence[str] = (),
    target: Target | None = None,
    sagemaker: bool = False,
    dynamo: bool = False,
    arguments: Sequence[str] = (),
) -> list[Finding]:
    """Check a repository, made by plansmith or not; nothing is written, and no model is run.

    Args:
        root: the folder that Triton reads.
        models: those to check; all where none is named.
        target: what it will be served by; what the repository itself says, where it is ours, when None.
        sagemaker: hold it against the rules of SageMaker's front end too.
        dynamo: hold it against those of NVIDIA Dynamo's worker, too.
        arguments: what the server is started with besides.

    Returns:
        Findings in the order of models, places and lines; those of the repository as a whole first.

    Raises:
        RepositoryError: there is no such folder, it cannot be read, it is the folder of one model or holds the
            repositories of several targets, or it has no such model.
        EngineError: the target that the repository is for is not known any more.
    """
    _require_repository(root)
    surroundings = CheckContext(root, {}, target or _own_target(root), sagemaker, dynamo, tuple(arguments))
    if _is_model(root):
        return _of_one_model(surroundings)
    present = read_models(root, next(iter(surroundings.argument("model-config-name")), ""))
    missing = sorted(set(models) - set(present))
    if missing:
        raise RepositoryError(
            f"{root} has no model {', '.join(map(repr, missing))}",
            remedy=suggest_names(missing, present, otherwise="name another repository"),
        )
    surroundings = _as_served(_with_models(surroundings, present))
    findings = [] if models else [finding for module in _OF_THE_WHOLE for finding in module.check_whole(surroundings)]
    for name in models or present:
        findings += _check_model(present[name], surroundings)
    return sorted(set(findings), key=_order)


def check_package(
    package: Package, folder: Path, *, target: Target, dynamo: bool = False, arguments: Sequence[str] = ()
) -> list[Finding]:
    """Check a release that is being built, as a repository would show it.

    Args:
        package: what it holds.
        folder: with its configuration, the files beside that, and the model's files in `releases.MODEL_FOLDER`; the
            same of each part of an ensemble in a folder of its own.
        target: what it will be served by.
        dynamo: hold it against the rules of NVIDIA Dynamo's worker, too.
        arguments: what the server is started with besides what the package asks for.
    """
    read = [read_package(package.model, folder)]
    read += [read_package(member.model, folder / member.folder) for member in package.members]
    all_arguments = (*package.server_arguments, *arguments)
    models = {model.name: model for model in read}
    surroundings = CheckContext(folder.parent, models, target, dynamo=dynamo, arguments=all_arguments)
    modules = tuple(module for module in _MODULES if module is not layout)  # of repositories alone
    return sorted({finding for model in read for finding in _check_one(model, surroundings, modules)}, key=_order)


def _check_model(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Check a model and its other configurations; findings of those are no errors, as they are not in use."""
    yield from _check_one(model, surroundings)
    for variant in variants_of(model):
        place = variant.place()
        around = _with_models(surroundings, {**surroundings.models, model.name: variant})
        for finding in _check_one(variant, around):
            if finding.place == place:
                yield finding.model_copy(update={"severity": "warning"}) if finding.severity == "error" else finding


def _check_one(
    model: ModelFolder, surroundings: CheckContext, modules: Sequence[RuleModule] = _MODULES
) -> list[Finding]:
    findings = [finding for module in modules for finding in _guarded(module, model, surroundings)]
    hopeless = {finding.place for finding in findings if finding.rule in file.NO_MODEL}
    return [finding for finding in findings if finding.place not in hopeless or finding.rule in file.NO_MODEL]


def _guarded(module: RuleModule, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Run one rule module; an unreadable file becomes a finding."""
    try:
        yield from module.check(model, surroundings)
    except OSError as error:
        yield layout.UNREADABLE.broken(
            f"{error.filename or model.name} cannot be read: {error.strerror or error}",
            model=model.name,
            place=model.name,
            remedy="see that it is there and readable, and that its name is no longer than names may be",
        )


def _with_models(surroundings: CheckContext, models: Mapping[str, ModelFolder]) -> CheckContext:
    return replace(surroundings, models=models)


def _as_served(surroundings: CheckContext) -> CheckContext:
    """Add the server arguments that `plansmith serve` uses for plansmith releases; for SageMaker they are given."""
    if surroundings.is_for_sagemaker:
        return surroundings
    releases = [
        model.manifests[n] for model in surroundings.models.values() for n in model.loaded if n in model.manifests
    ]
    own = dict.fromkeys(argument for manifest in releases for argument in manifest.package.server_arguments)
    return replace(surroundings, arguments=(*own, *surroundings.arguments))


def _order(finding: Finding) -> tuple[str, str, int, int, str, str]:
    severity = SEVERITIES.index(finding.severity)
    return finding.model, finding.place, finding.line, severity, finding.rule, finding.message


def _of_one_model(surroundings: CheckContext) -> list[Finding]:
    """Handle the folder of a single model, which is no repository.

    Raise, or return SageMaker findings that state so.
    """
    root = surroundings.root.absolute()
    if not surroundings.is_for_sagemaker:
        raise RepositoryError(
            f"{root} is the folder of one model, and no repository",
            remedy=f"plansmith check {root.parent} {root.name}",
        )
    return sorted(sagemaker_rules.check_whole(surroundings), key=_order)


def _own_target(root: Path) -> Target | None:
    name = target_name(root)
    return None if name is None else load_target(name)


def _require_repository(root: Path) -> None:
    if not root.is_dir():
        problem = "is a file, and no repository" if root.exists() else "does not exist"
        raise RepositoryError(f"{root} {problem}", remedy="name the folder that holds the models' folders")
    if not os.access(root, os.R_OK | os.X_OK):
        raise RepositoryError(f"{root} cannot be read", remedy=f"chmod a+rx {shlex.quote(str(root))}")
    inner = repositories_in(root)
    if inner:
        raise RepositoryError(
            f"{root} holds the repositories of several targets",
            remedy=f"name one of them: {', '.join(map(str, inner))}",
        )


def _is_model(folder: Path) -> bool:
    """Whether a folder is a model's: it holds versions or a configuration, and no models."""
    inner = folders_of(folder)
    versions = {entry.name for entry in inner if is_plain(entry.name) and not (entry / CONFIG_FILE).exists()}
    others = [entry for entry in inner if entry.name not in {*versions, *NO_VERSIONS}]
    if (folder / CONFIG_FILE).exists():
        return bool(versions) or not any(map(_may_be_model, others))
    return bool(versions) and all(is_plain(entry.name) for entry in others)


def _may_be_model(folder: Path) -> bool:
    return (folder / CONFIG_FILE).exists() or any(is_plain(entry.name) for entry in folders_of(folder))
