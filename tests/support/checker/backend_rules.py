"""The rules of backends, held against a repository without all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.triton.checker.model_folder import CheckContext
from plansmith.triton.checker.reader import read_models
from plansmith.triton.checker.rules import sagemaker as sagemaker_rules
from plansmith.triton.checker.rules.backends import dali, members, onnxruntime, python, tensorrt
from plansmith.triton.checker.rules.ensemble import rules

if TYPE_CHECKING:
    from plansmith.config.targets import Target
    from plansmith.records.release import Manifest
    from plansmith.triton.checker.findings import Finding

MODULES = (onnxruntime, tensorrt, python, dali, rules, members, sagemaker_rules)


def findings(
    root: Path,
    *,
    target: Target | None = None,
    sagemaker: bool = False,
    arguments: Sequence[str] = (),
    manifests: Mapping[str, Manifest] | None = None,
) -> list[Finding]:
    """What breaks the rules of backends in a repository; `manifests`: of version 1 of models that we made."""
    models = dict(read_models(root))
    for name, manifest in (manifests or {}).items():
        models[name] = replace(models[name], manifests={1: manifest})
    around = CheckContext(root, models, target=target, sagemaker=sagemaker, arguments=tuple(arguments))
    results = [f for module in MODULES for model in models.values() for f in module.check(model, around)]
    results += sagemaker_rules.check_whole(around)
    rule_ids = {rule.id for module in MODULES for rule in module.RULES}
    for finding in results:
        assert finding.message
        assert finding.remedy, finding
        assert finding.rule in rule_ids, "a rule that its module does not list"
        assert finding.line == 0 or finding.place, finding
    return results


def broken(root: Path, **options: object) -> set[str]:
    """The rules that are broken in a repository; arguments as for `findings`."""
    return {finding.rule for finding in findings(root, **options)}  # type: ignore[arg-type]
