"""What reads bytes of others accepts them or refuses them in words, whatever they are; `make fuzz` searches longer."""

from __future__ import annotations

import pytest

from .support.fuzz.readers import READERS


@pytest.mark.parametrize("name", READERS)
def test_hostile_inputs_accepted_or_refused(name: str) -> None:
    """Real inputs, those made to do harm, and those that were once answered wrongly; the first is a real one."""
    first, *others = READERS[name].seeds()
    assert READERS[name].attempt(first)
    for data in (*others, *READERS[name].hostile()):
        READERS[name].attempt(data)


@pytest.mark.parametrize("name", READERS)
def test_mutations_accepted_or_refused(name: str) -> None:
    """Real inputs with some bytes changed, taken out, doubled or put in; the same ones every time."""
    for data in READERS[name].mutations(seed=17):
        READERS[name].attempt(data)
