"""Model compilation as a Prefect flow: the steps of `Compilation`, each as its own task.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Cancelled

from plansmith.config.spec import ModelSpec, folder_of
from plansmith.errors import PlansmithError
from plansmith.fleet.records import model_for
from plansmith.flows.prefect_api.api import end_with_serving_process, rooted
from plansmith.flows.prefect_api.run_log import failed_with
from plansmith.flows.runs import following
from plansmith.flows.runs.gpu_queue import in_turn, queues_of
from plansmith.flows.runs.listening import RunListener
from plansmith.flows.runs.outcomes import announce, model_name, outcome_of
from plansmith.records.release import PublishedVersion
from plansmith.steps.compilation import Compilation
from plansmith.steps.runner import Listener
from plansmith.steps.walk import Step

C = TypeVar("C")
S = TypeVar("S")

RETRY_SECONDS = [5.0, 30.0]


def run_name() -> str:
    """Return the Prefect name of a run: the model and its target."""
    spec, folder = flow_run.parameters["spec"], flow_run.parameters["folder"]
    model_spec = spec if isinstance(spec, ModelSpec) else ModelSpec.model_validate(spec)
    return model_for(model_name(model_spec, Path(folder)), folder_of(model_spec.target))


@flow(name="compile-model", flow_run_name=run_name, persist_result=False, result_serializer="json")
def compile_model(spec: ModelSpec, folder: str = ".", directory: str = "") -> Any:
    """Compile a model into a published version of a Triton model repository.

    The run leaves an artifact that tells what came of it (`outcomes.read_outcome`), however it ends, unless it is
    killed.

    Args:
        spec: what to compile.
        folder: what relative directories in the spec start from.
        directory: what its artifacts, repository, server and target's file start from; the folder where left out.

    Returns:
        The published version as JSON values; the state Cancelled after an interrupt; the state Failed with a
        PlansmithError in it, located at the step that failed, where nothing was published.
    """
    end_with_serving_process()
    base, watching = Path(folder).absolute(), following.current.get() or following.RunObserver()
    own = Path(directory).absolute() if directory else base
    name, target, started = model_name(spec, base), folder_of(spec.target), time.monotonic()
    listener = RunListener(name, target, watching.listener)
    listener.tag_run()

    def end(ended: PublishedVersion | BaseException) -> None:
        watching.ended = outcome_of(name, target, ended, time.monotonic() - started)
        is_awaited = following.current.get() is None
        listener.show_outcome(watching.ended, listener.findings_of(ended), is_awaited=is_awaited)

    try:
        with Compilation(rooted(spec, own), relative_to=base, listener=listener) as compilation:
            preview = compilation.preview()
            listener.show_plan(preview)
            watching.outcome = compilation.run(InTasks(queues_of(spec, preview), listener))
        published = watching.outcome[0]
        listener.show_release(published)
    except KeyboardInterrupt as interrupt:
        end(interrupt)
        return Cancelled(message="It was interrupted; what was finished stays in the cache.")
    except Exception as error:
        listener.failed(error)
        end(error)
        if isinstance(error, PlansmithError):
            return failed_with(error)
        raise
    end(published)
    if not published.unchanged:
        announce(published, target)
    return published.model_dump(mode="json")


class InTasks:
    """Step executor that runs each step as a Prefect task, with retries of transient errors.

    Args:
        queues: the limits that a step takes first, by its name.
        listener: told what it waits for.
    """

    def __init__(self, queues: Mapping[str, list[str]], listener: Listener) -> None:
        self._queues = queues
        self._listener = listener

    def __call__(self, step: Step[C, S], context: C, state: S, /) -> S | None:
        """Run a step and return the next state."""
        wrapped = task(
            name=step.name,
            task_run_name=step.name,
            retries=len(RETRY_SECONDS),
            retry_delay_seconds=RETRY_SECONDS,
            retry_condition_fn=is_transient,
            cache_policy=NO_CACHE,
            persist_result=False,
        )(in_turn(step.name, lambda: step.run(context, state), self._queues.get(step.name, []), self._listener))
        return wrapped()


def is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether a failed task's error is transient, so that a retry makes sense."""
    error = state.data
    return isinstance(error, PlansmithError) and error.transient
