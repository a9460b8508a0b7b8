"""How a flow run ended, and what that is to the user who waited for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault, InternalError, PlansmithError
from plansmith.fleet.records import NEXT
from plansmith.flows.runs.outcomes import read_outcome
from plansmith.formatting import format_seconds

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State as RunState

    from plansmith.fleet.records import ModelOutcome
    from plansmith.flows.runs.submitting import SubmittedRun
    from plansmith.steps.provenance.history import Failure

DELETED = "DELETED"
"""The state of a run that the API does not have any more."""

_KINDS = {kind.exit_code: kind for kind in PlansmithError.__subclasses__()}


@dataclass(frozen=True)
class RunEnded:
    """A flow run that has ended.

    Args:
        run: which one.
        state: Prefect's type of its last state, or `DELETED`.
        message: that of the state.
        outcome: what the run itself left; None where it could not, or is no run of compile-model.
    """

    run: SubmittedRun
    state: str
    message: str
    outcome: ModelOutcome | None = None

    @property
    def exit_code(self) -> int:
        """What a command that waited for the run ends with."""
        error = self.error
        if error is not None:
            return error.exit_code
        return EXIT_INTERRUPTED if self.state == "CANCELLED" else 0

    @property
    def error(self) -> PlansmithError | None:
        """What kept the run from its end; None where it completed or was cancelled."""
        if self.state in {"COMPLETED", "CANCELLED"}:
            return None
        if self.state == "FAILED" and self.outcome is not None and self.outcome.failure is not None:
            return _error_from(self.outcome.failure, self.outcome.model)
        return self._without_outcome().located(model=self.run.name)

    @property
    def words(self) -> str:
        """How it ended, in a few words."""
        error, outcome = self.error, self.outcome
        if error is not None:
            at = f" at {error.step}" if error.step else ""
            return f"failed{at}, exit code {error.exit_code}"
        if self.state == "CANCELLED":
            return "cancelled"
        if outcome is None:
            return "completed"
        state = "unchanged, still" if outcome.ended == "unchanged" else f"{outcome.ended},"
        return f"{state} version {outcome.version}, in {format_seconds(outcome.seconds)}"

    def document(self) -> dict[str, Any]:
        """It as JSON-ready fields."""
        error = self.error
        return {
            **self.run.document(),
            "state": self.state,
            "exit_code": self.exit_code,
            "outcome": self.outcome and self.outcome.model_dump(mode="json"),
            "error": error and error.to_dict(),
        }

    def _without_outcome(self) -> PlansmithError:
        where = f"see its log: {self.run.address or self.run.id}"
        said = f": {self.message}" if self.message else ""
        if self.state == DELETED:
            return EnvironmentFault("its run was deleted from the Prefect server", remedy="submit it again")
        if self.state == "CRASHED":
            return EnvironmentFault(
                f"its run crashed{said}",
                remedy=f"submit it again, it goes on after the last finished step; {where}",
                transient=True,
            )
        return EnvironmentFault(f"its run failed before the compile began{said}", remedy=where)


def ended_run(run: SubmittedRun, state: RunState) -> RunEnded:
    """A run that has ended, with what it left.

    Raises:
        httpx.HTTPError: the API does not answer.
    """
    return RunEnded(run, state.type.value, state.message or "", read_outcome(run.id))


def _error_from(failure: Failure, model: str) -> PlansmithError:
    kind = _KINDS.get(failure.exit_code, InternalError)
    said, _, remedy = failure.message.partition(NEXT)
    return kind(said, remedy=remedy, model=model, step=failure.step)
