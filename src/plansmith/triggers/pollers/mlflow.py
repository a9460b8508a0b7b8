"""MLflow poller: aliases, tags and versions as webhook events, and stages, which webhooks do not report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plansmith.config.service_triggers import Change, MlflowRegistry, Rule, is_match
from plansmith.triggers.pollers.poller import FaultNotices, Poller, Tell, is_pattern, is_wanted, polled, rules_for
from plansmith.triggers.registries.delivery import OWN_TAGS, Delivery, Event, RequestRejected, is_showable
from plansmith.triggers.registries.mlflow import MlflowApi, ModelVersion, event_of, stages_of

CREATED_DAYS = 14
"""How long a version counts as newly made: those from before a service was set up are not all built by it, and an inbox
knows a delivery for longer."""

_DAY = 86_400


class MlflowPoller(Poller):
    """MLflow poller: polls an MLflow server for the models that rules name.

    Args:
        name: of the registry.
        config: of it.
        rules: of the service.
        environment: of the process, with MLflow's credentials.
        tell: says what is not there, once.
    """

    def __init__(
        self, name: str, config: MlflowRegistry, rules: Sequence[Rule], *, environment: Mapping[str, str], tell: Tell
    ) -> None:
        self.pause_seconds = config.poll_seconds
        self._name = name
        self._rules = rules_for(rules, name)
        self._own_alias = config.write_back_alias
        self._api = MlflowApi(config.tracking_uri, environment)
        self._notices = FaultNotices(tell)
        if any(rule.when == "created" for rule in self._rules):
            self.cautions = (f"versions that were made more than {CREATED_DAYS} days ago are not looked at",)

    def poll(self, now: float) -> list[Delivery]:
        """Return events for the current state of models and for recently created versions.

        Raises:
            EnvironmentFault: the server cannot be asked, or is none of MLflow's.
        """
        return [polled(event) for model in self._models() for event in self._events(model, now)]

    def _models(self) -> list[str]:
        named = {rule.model for rule in self._rules}
        patterns = sorted(filter(is_pattern, named))
        names = named.difference(patterns)
        available = list(self._api.models()) if patterns else []
        for pattern in patterns:
            matching = [candidate for candidate in available if is_match(candidate, pattern)]
            if matching:
                self._notices.well(pattern)
            else:
                self._notices.wrong(pattern, f"no model at {self._api.address} is called like {pattern!r}")
            names.update(matching)
        return sorted(names)

    def _events(self, model: str, now: float) -> Iterator[Event]:
        """Yield the events of a model that match rules, oldest version first, and in order within each version."""
        if not is_showable(model) or {"'", '"'} <= set(model):  # a filter holds a text between one of them
            self._notices.wrong(model, f"{model!r} is left out: its name cannot be shown or asked for")
            return
        kinds = {rule.when for rule in rules_for(self._rules, self._name, model)}
        states: list[tuple[str, Change, str]] = []
        versions = list(self._api.versions(model)) if kinds & {"created", "tag", "stage"} else []
        for item in versions:
            states += _states(item, since=now - CREATED_DAYS * _DAY)
        states += [(version, "stage", stage) for stage, version in stages_of(versions).items()]
        # Without versions it need not be there, which only the question for its aliases tells.
        aliases = self._aliases(model) if "alias" in kinds or not versions else {}
        if "alias" in kinds:
            states += [(version, "alias", alias) for alias, version in aliases.items()]
        order = ("created", "tag", "stage", "alias")
        for version, change, value in sorted(
            states, key=lambda item: (_number(item[0]), order.index(item[1]), item[2])
        ):
            try:
                event = event_of(self._name, model, version, change, value)
            except RequestRejected as refused:
                self._notices.wrong(
                    f"{model} {version}", f"{model!r}, version {version!r} is left out: {refused.reason}"
                )
                continue
            if is_wanted(self._rules, event):
                yield event

    def _aliases(self, model: str) -> dict[str, str]:
        versions_by_alias = self._api.aliases(model)
        if versions_by_alias is None:
            self._notices.wrong(model, f"there is no model {model!r} at {self._api.address}")
            return {}
        self._notices.well(model)
        foreign = (alias for alias in versions_by_alias if alias != self._own_alias)
        return {alias: versions_by_alias[alias] for alias in foreign if is_showable(alias)}


def _states(model_version: ModelVersion, *, since: float) -> Iterator[tuple[str, Change, str]]:
    if model_version.is_ready and model_version.created >= since:
        yield model_version.version, "created", ""
    for key, value in model_version.tags.items():
        if key and not key.startswith(OWN_TAGS) and is_showable(value) and is_showable(key):
            yield model_version.version, "tag", f"{key}={value}"


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
