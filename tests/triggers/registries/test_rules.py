"""The first rule that matches decides; a rule that never can is told of before anything waits for it."""

from __future__ import annotations

from itertools import product

import pytest

from plansmith.config.service_triggers import Rule, TriggersConfig, is_covering, is_match, is_overlapping
from plansmith.triggers.registries.delivery import Event
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
    return [problem.message for problem in rule_problems(config)]


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
def test_rule_matches_four_fields(rule: Rule, matches: bool) -> None:
    """A rule matches by registry, change, model and value."""
    assert (rule_of([rule], _event()) is rule) is matches


def test_first_matching_rule_decides() -> None:
    """The first rule that matches decides."""
    others, first, second = (_rule("ours", "alias", model) for model in ("encoder", "ranker", "*"))
    assert rule_of([others, first, second], _event()) is first
    assert rule_of([others, second, first], _event()) is second
    assert rule_of([others], _event()) is None


def test_star_takes_slash_bracket_literal() -> None:
    """A star takes a slash, and a bracket is a letter."""
    assert is_match("org/ranker", "*")
    assert is_match("a[b]", "a[b]")
    assert not is_match("ab", "a[b]")


def test_possible_events_are_no_problem() -> None:
    """What an event of each registry may fall under is no problem."""
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
def test_impossible_rule_told(rule: Rule, says: str) -> None:
    """A rule that nothing can fall under is told."""
    (problem,) = _problems(rule)
    assert problem.startswith("rules.0 never matches: ")
    assert says in problem


def test_shadowed_rule_told() -> None:
    """A rule behind one that takes all of it is told."""
    problems = _problems(
        _rule("ours", "alias", "rank*"), _rule("hub", "branch"), _rule("ours", "alias", "ranker", "old")
    )
    assert problems == ["rules.2 never matches: rules.0 comes first and takes all that it would"]


def test_two_rules_for_model_told() -> None:
    """Two rules for one model are told."""
    problems = _problems(_rule("ours", "alias", "ranker"), _rule("ours", "alias", "ranker", spec="b.yaml"))
    assert problems == ["rules.1 never matches: rules.0 comes first and takes all that it would"]
    problems = _problems(_rule("ours", "alias", "ranker-*", "champion"), _rule("ours", "alias", "*-fr", "champion"))
    assert problems == [
        "rules.1 and rules.0 both take alias champion of ranker-* with *-fr: rules.0 decides, as it comes first"
    ]


def test_exception_before_general_rule_allowed() -> None:
    """An exception before a rule for all is what order is for."""
    assert _problems(_rule("ours", "alias", "ranker"), _rule("ours", "alias")) == []


def test_disjoint_rules_do_not_meet() -> None:
    """Rules for different aliases or changes of one model do not meet."""
    rules = [_rule("ours", "alias", "ranker", value) for value in ("champion", "candidate")]
    assert _problems(*rules, _rule("ours", "tag", "ranker")) == []


def test_patterns_compared_over_all_texts() -> None:
    """Patterns are compared as all texts would compare them."""
    texts = ["".join(letters) for length in range(5) for letters in product("abc", repeat=length)]
    patterns = ["".join(letters) for length in range(4) for letters in product("ab*?", repeat=length)]
    matches = {pattern: frozenset(text for text in texts if is_match(text, pattern)) for pattern in patterns}
    assert len(patterns) == 85
    for first, second in product(patterns, patterns):
        assert is_overlapping(first, second) == bool(matches[first] & matches[second]), (first, second)
        assert is_covering(first, second) == (matches[second] <= matches[first]), (first, second)


def test_long_patterns_compared_quickly() -> None:
    """Long patterns are compared at once."""
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
def test_write_back_rule_starts_nothing(rule: Rule, says: str) -> None:
    """What is written back starts nothing, and a rule for it alone is said."""
    problems = _problems(rule)
    assert [says in problem for problem in problems] == ([True] if says else []), problems
