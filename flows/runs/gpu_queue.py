"""GPU queue: a Prefect concurrency limit that runs acquire before building on a GPU.

The lock of the kernel (`gpus.lock_gpu`) is what keeps two builds apart, also from those that Prefect does not know of.
A run that waits for the lock looks as if it worked; one that waits for the limit is seen to wait. So a limit that
cannot be asked for, or that gives no turn for long, is no reason not to build. A holder that dies keeps its slot for
`LEASE_SECONDS`; but where the leases were in the memory of a server that was restarted, the default of Prefect's
PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE, a slot that was held then is never given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError

from plansmith.errors import PlansmithError
from plansmith.flows.prefect_api.patience import UNTAKEN
from plansmith.records.model import EngineKind
from plansmith.system.gpu_catalog import find_kind, is_kind
from plansmith.system.gpus import visible_gpus

if TYPE_CHECKING:
    from plansmith.config.spec import ModelSpec
    from plansmith.steps.runner import Listener

R = TypeVar("R")

LEASE_SECONDS = 60.0  # the shortest that Prefect's server takes; it is renewed while its holder lives
TURN_SECONDS = 1800.0
"""How long a run waits for its turn; then the GPU's lock alone decides."""

_POLL_SECONDS = 5.0
_LOCKED = 423
_UNASKED = (*UNTAKEN, ConcurrencySlotAcquisitionError, TimeoutError)

_STEPS = ("compile", "validate", "beside")


def queues_of(spec: ModelSpec, preview: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the concurrency limits to acquire, by step; none for a cached step or one without a GPU.

    Args:
        spec: what is compiled.
        preview: what has to be done, step by step, as `Compilation.preview` says it.
    """
    if spec.engine is not EngineKind.TENSORRT:
        return {}
    try:
        names = _limits(spec)
    except PlansmithError:
        return {}  # the step itself says what is wrong with the GPUs
    return {step: names for step in _STEPS if names and preview.get(step, "").startswith("would")}


def limit_of(uuid: str) -> str:
    """Return the name of a GPU's concurrency limit, by UUID, as each container has its own host name."""
    return f"gpu:{uuid}"


def in_turn(step: str, run: Callable[[], R], names: list[str], listener: Listener) -> Callable[[], R]:
    """Wrap a step so that it runs once it has the slots of some concurrency limits.

    Args:
        step: its name.
        run: carries it out, and uses GPUs.
        names: of the limits; they are made where they are missing, and left alone where a person made them.
        listener: told what it waits for, and what cannot be asked.
    """

    def waiting() -> R:
        with _hold_slots(names, step, listener):
            return run()

    return waiting if names else run


@contextmanager
def _hold_slots(names: list[str], step: str, listener: Listener) -> Iterator[None]:
    slots, queue = ExitStack(), f"Prefect's queue {', '.join(names)}"
    try:
        if not _took_turn(names, slots, lambda text: listener.waiting(step, text)):
            listener.notice(
                f"{queue} gave no turn for {TURN_SECONDS:.0f} s; the GPU's lock alone decides. Where nothing builds on"
                f" it, free the queue: {'; '.join(f'prefect gcl update {name} --active-slots 0' for name in names)}"
            )
    except _UNASKED as error:
        listener.notice(f"{queue} cannot be asked: {error.__cause__ or error}; the GPU's lock alone decides")
    try:
        yield
    finally:
        try:
            slots.close()
        except _UNASKED as error:
            listener.notice(f"{queue} was not told of the end: {error}; it finds out itself")


def _took_turn(names: list[str], slots: ExitStack, tell: Callable[[str], None]) -> bool:
    """Acquire a slot of each concurrency limit; return False where that took too long.

    It looks, and looks again: Prefect's own wait is for ever, or cuts a request short whose slot is then nobody's; and
    its client logs an error for each request for a slot that is refused.
    """
    deadline, is_reported = time.monotonic() + TURN_SECONDS, False
    while True:
        busy_names = [name for name in names if _is_taken(name)]
        if not busy_names and _took(names, slots):
            return True
        if busy_names and not is_reported:
            tell(f"waiting in Prefect's queue {', '.join(busy_names)} for another run that builds on this GPU")
            is_reported = True
        if time.monotonic() + _POLL_SECONDS > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _took(names: list[str], slots: ExitStack) -> bool:
    """Try to acquire a slot of each concurrency limit; return False where another run was faster."""
    try:
        slots.enter_context(_slots(names))
    except ConcurrencySlotAcquisitionError as error:
        if not _is_locked(error):
            raise
        return False
    return True


def _slots(names: list[str]) -> AbstractContextManager[None]:
    """The slots, requested once; a lease lost during the step does not stop it."""
    return concurrency(
        names, max_retries=0, lease_duration=LEASE_SECONDS, strict=False, raise_on_lease_renewal_failure=False
    )


def _is_locked(error: ConcurrencySlotAcquisitionError) -> bool:
    """Whether the slots are in use by others, as opposed to another error."""
    cause = error.__cause__
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code == _LOCKED


def _is_taken(name: str) -> bool:
    """Whether a concurrency limit has no free slot; the limit is created where it does not exist."""
    with get_client(sync_client=True) as client:
        try:
            limit = client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            try:
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
            except (ObjectAlreadyExists, PrefectHTTPStatusError):
                client.read_global_concurrency_limit_by_name(name)  # another run was faster
            return False
        return limit.active and limit.active_slots >= limit.limit


def _limits(spec: ModelSpec) -> list[str]:
    """The concurrency limits of the GPUs that the steps may choose: the first of each kind."""
    local_gpus = visible_gpus()
    may_be_another = spec.tensorrt.hardware_compatibility != "none"
    kinds = [] if may_be_another else [find_kind(name, local_gpus) for name in spec.tensorrt.gpus]
    first = {gpu.name: gpu for gpu in reversed(local_gpus) if not kinds or any(is_kind(gpu, kind) for kind in kinds)}
    return sorted(limit_of(gpu.uuid) for gpu in first.values())
