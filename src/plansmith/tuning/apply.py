"""The spec of the best configuration, and its compile into a new release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plansmith.config.spec import ModelSpec, escaped, make_spec
from plansmith.records.release import Manifest, PublishedVersion
from plansmith.steps.runner import Listener
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.tuned_model import TunedModel

_TRITON = "triton"


def spec_changes(spec: ModelSpec, best: Configuration, current: Configuration) -> dict[str, Any]:
    """The keys of a spec that change, each whole: settings that a search does not change stay.

    Args:
        spec: of the model.
        best: the configuration to serve.
        current: the one that the spec makes.
    """
    changes = best.spec_changes(current)
    own = spec.triton.model_dump(mode="json", exclude_defaults=True)
    changed = changes.get(_TRITON, {})
    triton: dict[str, Any] = {key: value for key, value in changed.items() if key == "max_batch_size"}
    if "dynamic_batching" in changed:
        triton["dynamic_batching"] = _merge_batching(own.get("dynamic_batching"), changed["dynamic_batching"])
    if "instance_group" in changed:
        first: dict[str, Any] = next(iter(own.get("instance_group", [])), {})
        triton["instance_group"] = [first | changed["instance_group"][0]]
    if "parameters" in changed:
        merged = own.get("parameters", {}) | changed["parameters"]
        triton["parameters"] = {key: value for key, value in merged.items() if value is not None}
    return {key: value for key, value in changes.items() if key != _TRITON} | ({_TRITON: triton} if triton else {})


def changed_spec(spec: ModelSpec, changes: Mapping[str, Any]) -> ModelSpec:
    """A spec with changes; below `triton` those keys that are named.

    Raises:
        UsageError: they do not go together.
    """
    values = spec.model_dump(mode="json")
    values |= {key: value for key, value in changes.items() if key != _TRITON}
    values[_TRITON] |= changes.get(_TRITON, {})
    return make_spec(values)


def format_changes(changes: Mapping[str, Any]) -> str:
    """The changes as lines of a spec; empty without any."""
    import yaml

    return yaml.safe_dump(escaped(dict(changes)), sort_keys=False, allow_unicode=True) if changes else ""


def publish_changes(
    model: TunedModel, changes: Mapping[str, Any], listener: Listener | None = None
) -> tuple[PublishedVersion, Manifest]:
    """Compile the model with changes of its spec, through all gates, and publish it as the spec says.

    Raises:
        PlansmithError: located at the step that failed; nothing was published.
    """
    from plansmith.steps.compilation import Compilation

    spec = changed_spec(model.spec, changes).model_copy(update={"name": model.name})
    with Compilation(spec, relative_to=model.base, listener=listener) as compilation:
        return compilation.run()


def _merge_batching(own: Any, changed: Any) -> Any:
    if changed is False or not isinstance(own, dict):
        return changed
    return {key: value for key, value in own.items() if key != "preferred_batch_size"} | changed
