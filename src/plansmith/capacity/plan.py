"""The plan of a capacity measurement: how far memory is filled, and which requests come afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from plansmith.errors import UsageError

DEFAULT_SHARE = 0.9
DEFAULT_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class CapacityPlan:
    """What is measured.

    Attributes:
        share: of the memory that may be used, above 0 and up to 1.
        max_copies: load no more than these; None for as many as fit.
        memory_bytes: of host memory that the server and its copies may use; None for all of the machine.
        timeout_seconds: how long each load, unload and answer may take.
        invocations: random ones over more models than fit; 0 for none.
        models: over which they go; None for twice as many as fit.
        seed: of their order.

    Raises:
        UsageError: a value out of its range.
    """

    share: float = DEFAULT_SHARE
    max_copies: int | None = None
    memory_bytes: int | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    invocations: int = 0
    models: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"--share {self.share:g} is no share", remedy="give one above 0 and up to 1: --share 0.9")
        if self.max_copies is not None and self.max_copies < 1:
            raise UsageError(f"--max-copies {self.max_copies} loads nothing", remedy="give 1 or more, or leave it out")
        if self.invocations < 0 or (self.models is not None and self.models < 1):
            raise UsageError("--invocations and --models cannot be negative", remedy="give 1 or more")
        if self.models is not None and not self.invocations:
            raise UsageError("--models goes with --invocations", remedy="say how many: --invocations 200")
        if self.timeout_seconds <= 0:
            raise UsageError(
                f"--timeout {self.timeout_seconds:g} is no time", remedy="give seconds above 0: --timeout 600"
            )
