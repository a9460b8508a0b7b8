"""A search that ends at any moment is resumed, and what was measured is not measured again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.objective import Goal
from plansmith.tuning.trials.history import HISTORY_FILE, Measurement, Trial, TrialHistory, read_records, trial_key

from ..support.tuning.searches import context_of, make_runner, run_search
from ..support.tuning.surface import CURRENT, FP32, SPACE, Surface

CONTEXT = context_of(SPACE)


class Interrupted(Surface):
    """Ends in its n-th trial, as with Ctrl-C."""

    after = 0

    def __call__(self, configuration: Configuration, seconds: float) -> Measurement:
        if len(self.requests) == self.after:
            raise KeyboardInterrupt
        return super().__call__(configuration, seconds)


@pytest.mark.parametrize("after", [0, 1, 7, 24, 27, 30, 31, 39])
def test_interrupted_search_is_resumed(after: int, tmp_path: Path) -> None:
    """The second run ends like an uninterrupted one; only a round that both processes ran is run again."""
    whole = run_search(make_runner(Surface(), tmp_path / "whole"), Goal())
    first = Interrupted()
    first.after = after
    with pytest.raises(KeyboardInterrupt):
        run_search(make_runner(first, tmp_path / "cut", session="one"), Goal())
    second = Surface(requests=list(first.requests))
    resumed = run_search(make_runner(second, tmp_path / "cut", session="two"), Goal())
    assert resumed.best.configuration == whole.best.configuration
    assert resumed.measured == len(resumed.trials) - after
    is_split = after in {31, 39}
    assert len(resumed.trials) - len(whole.trials) == 2 * is_split
    assert resumed.confirmation is not None
    assert all(pair.current.session == pair.candidate.session for pair in resumed.confirmation.rounds)
    assert len(resumed.confirmation.rounds) == 5


def test_finished_search_repeated_without_run(tmp_path: Path) -> None:
    """The same search again measures nothing."""
    first = run_search(make_runner(Surface(), tmp_path), Goal())
    surface = Surface()
    again = run_search(make_runner(surface, tmp_path, session="two"), Goal())
    assert surface.requests == []
    assert again.trials == first.trials


def test_key_of_a_trial() -> None:
    """Another build, load, host, length, round or candidate is another trial."""
    variant = CURRENT.model_copy(update={"instances": 2})
    contexts = [
        CONTEXT,
        CONTEXT.model_copy(update={"builds": CONTEXT.builds | {FP32.label: "another"}}),
        CONTEXT.model_copy(update={"load": "another"}),
        CONTEXT.model_copy(update={"host": "another"}),
    ]
    keys = [trial_key(context, CURRENT, 8.0) for context in contexts]
    keys += [trial_key(CONTEXT, CURRENT, 4.0), trial_key(CONTEXT, CURRENT, 8.0, 1)]
    keys += [trial_key(CONTEXT, CURRENT, 8.0, 1, CURRENT), trial_key(CONTEXT, CURRENT, 8.0, 1, variant)]
    assert len(set(keys)) == len(keys)


def trial_of(number: int) -> Trial:
    configuration = CURRENT.model_copy(update={"max_batch_size": number})
    return Trial(key=trial_key(CONTEXT, configuration, 1.0), configuration=configuration, seconds=1.0, problem="none")


def test_cut_line_costs_one_trial(tmp_path: Path) -> None:
    """What a killed process left of a line is cut off before the next trial is written."""
    history = TrialHistory(tmp_path)
    for number in (1, 2):
        history.add(trial_of(number))
    content = (tmp_path / HISTORY_FILE).read_bytes()
    for cut in range(content.index(b"\n") + 1, len(content), 7):
        (tmp_path / HISTORY_FILE).write_bytes(content[:cut])
        TrialHistory(tmp_path).add(trial_of(3))
        assert list(read_records(tmp_path / HISTORY_FILE, Trial)) == [trial_of(1), trial_of(3)]


def test_unreadable_line_is_skipped(tmp_path: Path) -> None:
    """A line that cannot be read costs no other trial."""
    TrialHistory(tmp_path).add(trial_of(1))
    with (tmp_path / HISTORY_FILE).open("ab") as file:
        file.write(b'{"key": 3}\n\xff\xfe\n\n')
    TrialHistory(tmp_path).add(trial_of(2))
    assert list(read_records(tmp_path / HISTORY_FILE, Trial)) == [trial_of(1), trial_of(2)]


def test_searches_exclude_each_other(tmp_path: Path) -> None:
    """Two searches would measure each other: the second one is refused."""
    with ExitStack() as stack:
        stack.enter_context(TrialHistory(tmp_path).exclusive())
        with pytest.raises(RepositoryError, match="another search"):
            stack.enter_context(TrialHistory(tmp_path).exclusive())
