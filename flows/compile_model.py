"""One compile as a Prefect flow: the steps of `Compilation`, each in a task of its own.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import httpx
from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from plansmith.config import ModelSpec
from plansmith.errors import PlansmithError
from plansmith.flows import onlookers
from plansmith.manifest import PublishedVersion, StepRecord
from plansmith.report import REPORT_FILE
from plansmith.reports import ValidationReport
from plansmith.sources.reference import parse_reference
from plansmith.stages import Listener
from plansmith.steps import Compilation
from plansmith.triton.releases import MANIFEST_FILE
from plansmith.types import Record

P = ParamSpec("P")
R = TypeVar("R")

RETRY_SECONDS = [5.0, 30.0]

_SAME_WORDS_SECONDS = 10
_FIGURES = re.compile(r"[\d.]+")


def run_name() -> str:
    """What Prefect calls a run: the model and its target."""
    spec, folder = flow_run.parameters["spec"], flow_run.parameters["folder"]
    found = spec if isinstance(spec, ModelSpec) else ModelSpec.model_validate(spec)
    return f"{_model_name(found, Path(folder))} · {found.target}"


@flow(name="compile-model", flow_run_name=run_name, persist_result=False)
def compile_model(spec: ModelSpec, folder: str = ".") -> Any:
    """Compile a model into a published version of a Triton model repository.

    Args:
        spec: what to compile.
        folder: what relative directories in the spec start from.

    Returns:
        The published version as JSON values; the state Cancelled after an interrupt.

    Raises:
        PlansmithError: located at the step that failed; nothing was published.
    """
    base, watching = Path(folder), onlookers.current.get() or onlookers.Onlooker()
    listener = RunListener(artifact_key(spec, base), watching.listener)
    try:
        with Compilation(spec, relative_to=base, listener=listener) as compilation:
            listener.show_plan(compilation.name, compilation.outlook())
            watching.outcome = compilation.run(in_task)
        published = watching.outcome[0]
        listener.show_release(published)
    except KeyboardInterrupt:
        return Cancelled(message="It was interrupted; what was finished stays in the cache.")
    return published.model_dump()


def in_task(step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Carry a step out as a Prefect task; what may well succeed a little later is tried again."""
    wrapped = task(
        name=step.__name__,
        task_run_name=step.__name__,
        retries=len(RETRY_SECONDS),
        retry_delay_seconds=RETRY_SECONDS,
        retry_condition_fn=is_transient,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(step)
    return wrapped(*args, **kwargs)


def is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether a failed task's error says that trying again makes sense."""
    error = state.data
    return isinstance(error, PlansmithError) and error.transient


def artifact_key(spec: ModelSpec, folder: Path) -> str:
    """The end of the keys of a model's artifacts, in the small letters, digits and dashes that Prefect takes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{_model_name(spec, folder)}-{spec.target}".lower()).strip("-")


class RunListener(Listener):
    """Tells Prefect how a compile goes, and another listener; make it inside a flow run.

    Downloads report from threads of their own, where Prefect knows of no run: the logger is taken once.

    Args:
        key: the end of the keys of artifacts.
        other: told as well.
    """

    def __init__(self, key: str, other: Listener) -> None:
        self._key = key
        self._other = other
        self._log = get_run_logger()
        self._told = ("", 0.0)

    def show_plan(self, name: str, plan: Mapping[str, str]) -> None:
        """Show what the compile has to do, step by step."""
        rows = [{"step": step, "state": state} for step, state in plan.items()]
        self._show(create_table_artifact, rows, key=f"plan-{self._key}", description=f"What compiling {name} has to do")

    def show_release(self, published: PublishedVersion) -> None:
        """Show where the release and its report are; its manifest where it is older than reports."""
        release = Path(published.release)
        shown = next((file for file in (REPORT_FILE, MANIFEST_FILE) if (release / file).is_file()), MANIFEST_FILE)
        self._show(
            create_link_artifact,
            (release / shown).as_uri(),
            link_text=f"{published.name} version {published.version}",
            key=f"release-{self._key}",
            description=f"The {Path(shown).stem} of the release in {published.release}",
        )

    def progress(self, step: str, text: str) -> None:
        """Log what is being done."""
        self._other.progress(step, text)
        self._log_now_and_then(step, text)

    def moving(self, step: str, text: str, share: float) -> None:
        """Log how far something is."""
        self._other.moving(step, text, share)
        self._log_now_and_then(step, text)

    def _log_now_and_then(self, step: str, text: str) -> None:
        # What differs in its figures only, such as a download, is logged now and then.
        words, now = f"{step}: {_FIGURES.sub('', text)}", time.monotonic()
        if text and (words != self._told[0] or now > self._told[1] + _SAME_WORDS_SECONDS):
            self._told = (words, now)
            self._log.info("%s: %s", step, text)

    def waiting(self, step: str, text: str) -> None:
        """Log what has to end first."""
        self._other.waiting(step, text)
        self._log.info("%s: %s", step, text)

    def made(self, record: Record) -> None:
        """Show the gate's report, whatever its verdict."""
        self._other.made(record)
        if isinstance(record, ValidationReport):
            self._show(
                create_table_artifact,
                _validation_rows(record),
                key=f"validation-{self._key}",
                description=f"Gate {record.verdict}: {record.candidate} against {record.reference}, on {record.data}",
            )

    def finished(self, record: StepRecord) -> None:
        """Log a finished step."""
        self._other.finished(record)
        self._log.info("%s: %s", record.name, "cached" if record.cached else f"done in {record.seconds:.1f} s")

    def notice(self, text: str) -> None:
        """Log what was mended."""
        self._other.notice(text)
        self._log.warning("%s", text)

    def _show(self, create: Callable[..., Any], content: Any, **words: str) -> None:
        """Make an artifact; one that Prefect does not take is no reason to end a compile."""
        try:
            create(content, **words)
        except (httpx.HTTPError, PrefectException) as error:
            self.notice(f"Prefect did not take the artifact {words['key']}: {error or type(error).__name__}")


def _validation_rows(report: ValidationReport) -> list[dict[str, Any]]:
    return [
        {
            "output": row.output,
            "case": row.case,
            "shape": "x".join(map(str, row.shape)),
            "largest error": f"{row.max_relative:.1e}",
            "allowed": f"{report.tolerances[row.output].max_relative:.1e}",
            "cosine": f"{row.min_cosine:.9f}",
            "verdict": "; ".join(row.failures) or "passed",
        }
        for row in report.comparisons
    ]


def _model_name(spec: ModelSpec, folder: Path) -> str:
    return spec.name or parse_reference(spec.source, relative_to=folder).default_name
