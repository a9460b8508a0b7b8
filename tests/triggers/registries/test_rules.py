"""The first rule that matches decides; a rule that never can is told of before anything waits for it."""

from __future__ import annotations

from itertools import product

import pytest

from plansmith.config.service.patterns import is_covering, is_match, is_overlapping
from plansmith.config.service.triggers import Rule, TriggersConfig
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.rules import rule_of, rule_problems

REGISTRIES = {
    "ours": {"type": "mlflow", "tracking_uri": "https://mlflow.example.com"},
    "told": {
        "type": "mlflow",
        "tracking_uri": "https://mlflow.example.com",
        "write_back": True,
        "write_back_alias": "plansmith-ready",
    },
    "hub": {"type": "hub"},
    "aws": {"type": "sagemaker", "queue_url": "https://sqs.example.com/q"},
    "bucket": {"type": "s3", "prefix": "s3://bucket/models"},
    "here": {"type": "folder", "path": "models"},
    "ci": {"type": "hook", "secrets": ["env:CI"]},
}


def _rule(registry: str, when: str, model: str = "*", value: str = "*", spec: str = "a.yaml") -> Rule:
    return Rule.model_validate({"registry": registry, "when": when, "model": model, "value": value, "spec": spec})


def _problems(*rules: Rule) -> list[str]:
    config = TriggersConfig.model_validate({"registries": REGISTRIES, "rules": rules})
    return [one.words for one in rule_problems(config)]


def _event(model: str = "ranker", value: str = "champion", registry: str = "ours") -> Event:
    return Event(registry=registry, model=model, version="3", change="alias", value=value)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (_rule("ours", "alias"), True),
        (_rule("ours", "alias", "rank*", "champ?on"), True),
        (_rule("ours", "alias", "Ranker"), False),
        (_rule("ours", "alias", value="CHAMPION"), False),
        (_rule("ours", "alias", "rank"), False),
        (_rule("ours", "tag"), False),
        (_rule("hub", "alias"), False),
    ],
)
def test_a_rule_matches_by_registry_change_model_and_value(rule: Rule, matches: bool) -> None:
    assert (rule_of([rule], _event()) is rule) is matches


def test_the_first_rule_that_matches_decides() -> None:
    others, first, second = (_rule("ours", "alias", model) for model in ("encoder", "ranker", "*"))
    assert rule_of([others, first, second], _event()) is first
    assert rule_of([others, second, first], _event()) is second
    assert rule_of([others], _event()) is None


def test_a_star_takes_a_slash_and_a_bracket_is_a_letter() -> None:
    assert is_match("org/ranker", "*")
    assert is_match("a[b]", "a[b]")
    assert not is_match("ab", "a[b]")


def test_what_an_event_of_each_registry_may_fall_under_is_no_problem() -> None:
    assert (
        _problems(
            _rule("ours", "alias", value="champion"),
            _rule("ours", "tag", value="compile=*"),
            _rule("ours", "tag", value="*compile*"),
            _rule("ours", "created"),
            _rule("hub", "branch", value="refs/heads/main"),
            _rule("hub", "branch", value="*/v?"),
            _rule("aws", "approved"),
            _rule("bucket", "ready"),
            _rule("here", "ready"),
            _rule("ci", "asked"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (_rule("hub", "alias"), "hub is of type hub, which tells of branch and never of alias"),
        (
            _rule("ours", "branch"),
            "ours is of type mlflow, which tells of alias, stage, tag, created and never of branch",
        ),
        (_rule("here", "created"), "here is of type folder, which tells of ready and never of created"),
        (_rule("ours", "alias", model=""), "no model has an empty name"),
        (_rule("ours", "alias", value=""), "the value of alias is never '', but such as champion"),
        (_rule("ours", "tag", value="compile"), "'compile', but KEY=VALUE, such as compile=requested"),
        (_rule("hub", "branch", value="main"), "'main', but such as refs/heads/main or refs/tags/v1"),
        (_rule("hub", "branch", value="refs/pr/*"), "'refs/pr/*', but such as refs/heads/main"),
        (_rule("ours", "created", value="1"), "'1', but nothing: leave `value` out"),
        (_rule("ci", "asked", value="now"), "'now', but nothing: leave `value` out"),
    ],
)
def test_a_rule_that_nothing_can_fall_under_is_told(rule: Rule, says: str) -> None:
    (told,) = _problems(rule)
    assert told.startswith("rules.0 never matches: ")
    assert says in told


def test_a_rule_behind_one_that_takes_all_of_it_is_told() -> None:
    told = _problems(_rule("ours", "alias", "rank*"), _rule("hub", "branch"), _rule("ours", "alias", "ranker", "old"))
    assert told == ["rules.2 never matches: rules.0 comes first and takes all that it would"]


def test_two_rules_for_one_model_are_told() -> None:
    told = _problems(_rule("ours", "alias", "ranker"), _rule("ours", "alias", "ranker", spec="b.yaml"))
    assert told == ["rules.1 never matches: rules.0 comes first and takes all that it would"]
    told = _problems(_rule("ours", "alias", "ranker-*", "champion"), _rule("ours", "alias", "*-fr", "champion"))
    assert told == [
        "rules.1 and rules.0 both take alias champion of ranker-* with *-fr: rules.0 decides, as it comes first"
    ]


def test_an_exception_before_a_rule_for_all_is_what_order_is_for() -> None:
    assert _problems(_rule("ours", "alias", "ranker"), _rule("ours", "alias")) == []


def test_rules_for_different_aliases_or_changes_of_one_model_do_not_meet() -> None:
    rules = [_rule("ours", "alias", "ranker", value) for value in ("champion", "candidate")]
    assert _problems(*rules, _rule("ours", "tag", "ranker")) == []


def test_patterns_are_compared_as_all_texts_would_compare_them() -> None:
    texts = ["".join(letters) for length in range(5) for letters in product("abc", repeat=length)]
    patterns = ["".join(letters) for length in range(4) for letters in product("ab*?", repeat=length)]
    taken = {pattern: frozenset(text for text in texts if is_match(text, pattern)) for pattern in patterns}
    assert len(patterns) == 85
    for one, other in product(patterns, patterns):
        assert is_overlapping(one, other) == bool(taken[one] & taken[other]), (one, other)
        assert is_covering(one, other) == (taken[other] <= taken[one]), (one, other)


def test_long_patterns_are_compared_at_once() -> None:
    assert is_overlapping("*a" * 20, "*b" * 20) is False
    assert is_covering("*a*b*c*" * 5, "a?b?c?" * 5)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (_rule("ours", "tag", value="plansmith.verdict=published"), "tags that begin with plansmith. are what"),
        (_rule("told", "tag", value="plansmith.*=*"), "tags that begin with plansmith. are what"),
        (_rule("told", "alias", value="plansmith-ready"), "plansmith-ready is the alias that plansmith sets itself"),
        (_rule("ours", "alias", value="plansmith-ready"), ""),
        (_rule("told", "alias", value="plansmith-*"), ""),
        (_rule("told", "tag", value="plan*=*"), ""),
    ],
)
def test_what_is_written_back_starts_nothing_and_a_rule_for_it_alone_is_said(rule: Rule, says: str) -> None:
    problems = _problems(rule)
    assert [says in problem for problem in problems] == ([True] if says else []), problems
