"""The complete examination: runs all checks concurrently, heavy imports two at a time, and orders the findings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from plansmith.cli.doctor import libraries, machine, services
from plansmith.cli.doctor.findings import LIMIT_SECONDS, Ended, Examination, Finding, Probed, run_probe, run_program
from plansmith.compilers.trt.trtexec.output import find_trtexec
from plansmith.system.libraries import extra_requirements
from plansmith.triton.server.installation import has_gpu

_HEAVY_AT_ONCE = 2
_HEAVY = {*libraries.IMPORTED, "prefect_server"} - {"huggingface_hub", "jinja2"}
"""What takes seconds to import, which a deep examination alone does."""
_PROBED = (
    *libraries.IMPORTED,
    "prefect",
    "prefect_server",
    "gpus",
    "tensorrt",
    "tensorrt_rtx_bindings",
    "boto3",
    "mlflow",
)


@dataclass(frozen=True)
class _Answers:
    """Probe results of the child processes: probes by name, and trtexec if it is installed."""

    probes: dict[str, Probed]
    trtexec: Ended | None


def examine(
    artifacts: Path,
    *,
    online: bool = True,
    deep: bool = False,
    strict: bool = False,
    limit_seconds: float = LIMIT_SECONDS,
    progress: Callable[[str], None] = lambda _: None,
) -> Examination:
    """Examine everything that plansmith uses or will use.

    Args:
        artifacts: the folder that compiles write to; it need not exist, and nothing is left in it.
        online: ask the Prefect API, registries and stores that are configured.
        deep: import every package, and start Triton: that takes many seconds.
        strict: warnings count for the exit code.
        limit_seconds: how long each library and program may take.
        progress: told what is being looked at.
    """
    trtexec = find_trtexec()
    stated_versions = (
        {} if deep else {name: version for name in _HEAVY if (version := libraries.stated(name)) is not None}
    )
    probed = [name for name in _PROBED if name not in stated_versions]
    answers = asyncio.run(_ask(probed, trtexec, online=online, limit_seconds=limit_seconds, progress=progress))
    probes = stated_versions | answers.probes
    progress("starting Triton" if deep else "looking at Triton")
    findings = [
        *libraries.python_findings(),
        *_packages(probes),
        *([libraries.NOT_IMPORTED] if stated_versions else []),
        *services.look(deep=deep),
        *machine.folder_findings(artifacts),
        *machine.machine_findings(),
        *machine.gpu_findings(probes["gpus"], probes["torch"], present=has_gpu()),
        machine.tensorrt_finding(probes["tensorrt"]),
        machine.check_library_finding(probes["tensorrt_rtx_bindings"]),
        machine.trtexec_finding(trtexec, answers.trtexec),
        *services.prefect_findings(
            probes["prefect"],
            probes["prefect_server"],
            fastapi=libraries.installed_version("fastapi"),
            unmet=libraries.unmet_by("flows", "prefect", libraries.installed_version("prefect")),
        ),
        services.hub_finding(probes["huggingface_hub"]),
        services.mlflow_finding(probes["mlflow"]),
        *services.store_findings(
            probes["boto3"], unmet=libraries.unmet_by("s3", "boto3", libraries.installed_version("boto3"))
        ),
    ]
    return Examination(findings, strict=strict)


def _packages(probes: dict[str, Probed]) -> list[Finding]:
    """Return findings on the packages; missing metadata, without which requirements are unknown, is its own finding."""
    try:
        compiling = extra_requirements(libraries.COMPILE_EXTRA)
        reading = extra_requirements(libraries.DATA_EXTRA)
    except PackageNotFoundError:
        return []
    versions = {
        requirement.name: libraries.installed_version(requirement.name) for requirement in (*compiling, *reading)
    }
    return [
        *libraries.package_findings(compiling, versions, probes),
        *libraries.package_findings(reading, versions, probes, extra=libraries.DATA_EXTRA),
    ]


async def _ask(
    names: Sequence[str],
    trtexec: str | None,
    *,
    online: bool,
    limit_seconds: float,
    progress: Callable[[str], None],
) -> _Answers:
    gate = asyncio.Semaphore(_HEAVY_AT_ONCE)
    running: list[str] = []

    async def import_one(name: str) -> Probed:
        async with gate if name in _HEAVY else nullcontext():
            running.append(name)
            progress(f"looking at {', '.join(running)}")
            try:
                return await run_probe(name, online=online, limit_seconds=limit_seconds)
            finally:
                running.remove(name)

    async def run_installed(command: Sequence[str] | None) -> Ended | None:
        return await run_program(command, limit_seconds=limit_seconds) if command is not None else None

    async with asyncio.TaskGroup() as group:
        probes = {name: group.create_task(import_one(name)) for name in names}
        banner = group.create_task(run_installed([trtexec] if trtexec else None))
    return _Answers({name: task.result() for name, task in probes.items()}, banner.result())
