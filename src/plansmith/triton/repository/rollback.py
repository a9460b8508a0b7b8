"""What a rollback of a repository leads to, and since when Triton is not shown a release."""

from __future__ import annotations

from plansmith.formatting import seconds_of
from plansmith.triton.repository.release import misfit
from plansmith.triton.repository.repository import ModelRepository


def rollback_of(repository: ModelRepository, model: str) -> int | None:
    """The version that leads once the leading one is withdrawn: the newest before it that stands and is whole."""
    before = repository.standing(model)[:-1]
    return next((number for number in reversed(before) if repository.damage(model, number) is None), None)


def hidden_since(repository: ModelRepository, model: str, number: int) -> float:
    """Since when at the latest Triton is not shown a hidden release, in seconds since 1970; 0 where nothing tells.

    Since it was withdrawn itself; or since a release came that it does not stand beside, and none that it does came
    after that, or such a one was withdrawn.
    """
    withdrawals = repository.withdrawals(model)
    own = withdrawals.moment(number)
    if own is not None:
        return seconds_of(own)
    moments = [withdrawals.moment(other) for other in withdrawals.numbers() if other > number]
    return max((seconds_of(one) for one in (*moments, _unfit_since(repository, model, number)) if one), default=0.0)


def _unfit_since(repository: ModelRepository, model: str, number: int) -> str | None:
    """When the first came of the newest releases that all have no place for a release; None where there is none."""
    manifest, since = repository.readable(model, number), None
    for other in reversed([other for other in repository.standing(model) if other > number]):
        newer = repository.readable(model, other)
        if manifest is None or newer is None or misfit(manifest, newer) is None:
            break
        since = newer.created
    return since
