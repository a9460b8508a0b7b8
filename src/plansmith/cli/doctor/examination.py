"""The whole examination: asks everything at once, heavy imports two at a time, and puts the findings in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from plansmith.cli.doctor import folder, gpus, libraries, machine, services, serving
from plansmith.cli.doctor.children import LIMIT_SECONDS, Ended, Probed, run_probe, run_program
from plansmith.cli.doctor.findings import Examination, Finding
from plansmith.compilers.trtexec.probe import find_trtexec
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
    """What the children said: probes by name, and trtexec where it is installed."""

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
    """Look at everything that plansmith uses or will use.

    Args:
        artifacts: the folder that compiles write to; it need not exist, and nothing is left in it.
        online: ask the Prefect API, registries and stores that are configured.
        deep: import every package, and start Triton: that takes many seconds.
        strict: warnings count for the exit code.
        limit_seconds: how long each library and program may take.
        progress: told what is being looked at.
    """
    trtexec = find_trtexec()
    known = {} if deep else {name: found for name in _HEAVY if (found := libraries.stated(name)) is not None}
    asked = [name for name in _PROBED if name not in known]
    answers = asyncio.run(_ask(asked, trtexec, online=online, limit_seconds=limit_seconds, progress=progress))
    probes = known | answers.probes
    progress("starting Triton" if deep else "looking at Triton")
    findings = [
        *libraries.python_findings(),
        *_packages(probes),
        *([libraries.NOT_IMPORTED] if known else []),
        *serving.look(deep=deep),
        *folder.folder_findings(artifacts),
        *machine.machine_findings(),
        *gpus.gpu_findings(probes["gpus"], probes["torch"], present=has_gpu()),
        gpus.tensorrt_finding(probes["tensorrt"]),
        gpus.check_library_finding(probes["tensorrt_rtx_bindings"]),
        gpus.trtexec_finding(trtexec, answers.trtexec),
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
    """Without metadata nothing is known of what is needed, which is a finding of its own."""
    try:
        compiling = [*libraries.own_requirements(), *libraries.extra_requirements(libraries.COMPILE_EXTRA)]
        reading = libraries.extra_requirements(libraries.DATA_EXTRA)
    except PackageNotFoundError:
        return []
    versions = {one.name: libraries.installed_version(one.name) for one in (*compiling, *reading)}
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

    async with asyncio.TaskGroup() as asked:
        probes = {name: asked.create_task(import_one(name)) for name in names}
        banner = asked.create_task(run_installed([trtexec] if trtexec else None))
    return _Answers({name: task.result() for name, task in probes.items()}, banner.result())
