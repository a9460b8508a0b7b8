"""Hugging Face Hub poller: branches and Git tags, as events of its webhooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plansmith.config.service_triggers import HubRegistry, Rule
from plansmith.errors import SourceError
from plansmith.sources.hub import newest_refs
from plansmith.triggers.pollers.poller import FaultNotices, Poller, Tell, is_pattern, is_wanted, polled, rules_for
from plansmith.triggers.registries.delivery import Delivery, Event, is_showable


class HubPoller(Poller):
    """Hub poller: polls the models that rules name in full, as the Hub has too many others.

    Args:
        name: of the registry.
        config: of it.
        rules: of the service.
        tell: says what is not there, once.
    """

    def __init__(self, name: str, config: HubRegistry, rules: Sequence[Rule], *, tell: Tell) -> None:
        self.pause_seconds = config.poll_seconds
        self._name = name
        self._rules = rules_for(rules, name)
        self._notices = FaultNotices(tell)
        models = dict.fromkeys(rule.model for rule in self._rules)
        self.cautions = tuple(
            f"{model} is not looked at, as * and ? name no model to ask the hub for: only its webhooks tell of it"
            for model in models
            if is_pattern(model)
        )
        self._models = [model for model in models if not is_pattern(model)]

    def poll(self, now: float) -> list[Delivery]:  # noqa: ARG002 - a branch is where it is
        """Return the commits of branches and tags.

        Raises:
            EnvironmentFault: the hub cannot be reached, or must not be asked (HF_HUB_OFFLINE).
        """
        return [polled(event) for model in self._models for event in self._events(model)]

    def _events(self, model: str) -> Iterator[Event]:
        for ref, commit in sorted(self._refs(model).items()):
            source = f"hf:{model}@{commit}"
            event = Event(registry=self._name, model=model, version=commit, change="branch", value=ref, source=source)
            if is_showable(ref) and is_wanted(self._rules, event):
                yield event

    def _refs(self, model: str) -> Mapping[str, str]:
        """The commits of a model's branches and tags; a configured branch that does not exist is reported."""
        try:
            refs = newest_refs(model)
        except SourceError as error:
            self._notices.wrong(model, error.message)
            return {}
        self._notices.well(model)
        for rule in self._rules:
            if rule.model != model or is_pattern(rule.value):
                continue
            about = f"{model} {rule.value}"
            if rule.value in refs:
                self._notices.well(about)
            else:
                self._notices.wrong(about, f"{model} has no {rule.value} on the hub")
        return refs
