"""`plansmith sagemaker deploy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.output import echo_lines, program, short, table
from plansmith.cli.sagemaker.endpoint import (
    archives_option,
    json_option,
    polling_for,
    progress_to_stderr,
    quiet_option,
    spec_argument,
    wait_option,
)
from plansmith.errors import UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.sagemaker.deployment.apply import SmokeResult
    from plansmith.sagemaker.deployment.deploy import PlannedDeployment
    from plansmith.sagemaker.deployment.plan import DeploymentPlan
    from plansmith.sagemaker.endpoint.desired import ArchiveUpload, VariantArchives
    from plansmith.sagemaker.endpoint.spec import EndpointSpec
    from plansmith.stores.backend.object_store import Moved
    from plansmith.system.tasks import Progress

_EPILOG = """\
\b
Examples:
  plansmith sagemaker deploy endpoint.yaml --local
  plansmith sagemaker deploy endpoint.yaml --dry-run
  plansmith sagemaker deploy endpoint.yaml
  plansmith sagemaker deploy endpoint.yaml --json --wait-minutes 90

Exit codes: 0 when the endpoint is in service as the file says; 2 a file with problems, or a request that AWS refuses;
6 an instance type or image that cannot run or hold a model; 7 a release, archive or bucket that cannot be used, a name
that is taken, an endpoint that cannot be changed now; 8 an endpoint that did not come into service or failed its smoke
test, and was rolled back; 9 no credentials, a missing permission, an exceeded quota, or no answer from AWS.
"""

_SHOWN_ARCHIVES = 5
_REPORTED_SHARE = 10


@click.command("deploy", epilog=_EPILOG, short_help="Create or update an endpoint from its file.")
@spec_argument
@archives_option
@wait_option
@click.option("--dry-run", is_flag=True, help="Check, print the exact requests, and change nothing.")
@click.option("--local", is_flag=True, help="Serve it on this machine instead, have each model answer, and end.")
@json_option
@quiet_option
def deploy_command(
    spec: Path, output: Path, wait_minutes: int, *, dry_run: bool, local: bool, as_json: bool, quiet: bool
) -> None:
    """Create or update a SageMaker endpoint: archives, models, configuration, endpoint, auto scaling.

    Everything is checked before anything is created: image, instance types, plans, memory, role, bucket. What exists
    already is left alone, so that a second call changes nothing, and what plansmith did not create is never touched.
    When a deployment fails, the endpoint serves again what it did before.

    Once it is in service, and whenever nothing has to change, the endpoint has to answer what its releases hold, within
    the tolerances of their gates; smoke_test in the file names another request, or turns that off.

    A dry run reads the current state in AWS; without credentials, it assumes that nothing exists. With --local nothing
    is changed in AWS: SageMaker's front end of this machine's Triton serves each variant's archives in the environment
    of its container, and each model has to answer a request as its release did. Either reads the model registry where
    a variant has a model_package_group.
    """
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.deployment.apply import Deployment
    from plansmith.sagemaker.deployment.deploy import plan_deployment, read_released_endpoint

    if local and dry_run:
        raise UsageError("--local changes nothing in AWS: a dry run has nothing to show", remedy="leave one out")
    endpoint = read_released_endpoint(spec)
    archives = prepare_with_progress(endpoint, output, dry_run=dry_run, quiet=quiet or as_json)
    progress = progress_to_stderr(quiet=quiet)
    warn = progress_to_stderr(quiet=as_json)
    if local:
        _show(_package_warnings(archives), warn)
        _serve_locally(endpoint, archives, output / "logs", progress, as_json=as_json)
        if not as_json:
            click.echo(f"Next: {program()} sagemaker deploy {short(spec.absolute())} --dry-run")
        return
    with Account(endpoint) as account:
        planned = plan_deployment(endpoint, archives, account, dry_run=dry_run)
        warnings = _warnings(planned, archives)
        _show(warnings, warn)
        if dry_run:
            _print_plan(planned, warnings, as_json=as_json)
            return
        transfer = transfer_progress(planned.plan.uploads, progress)
        deployment = Deployment(account, polling_for(wait_minutes), progress, transfer)
        results = deployment.apply(planned.plan, planned.requests)
    if as_json:
        answers = [result.model_dump() for result in results]
        click.echo(json.dumps(_document(planned, warnings) | {"dry_run": False, "smoke_test": answers}))
        return
    _print_results(planned, results, spec)


def prepare_with_progress(spec: EndpointSpec, output: Path, *, dry_run: bool, quiet: bool) -> VariantArchives:
    """Build the archives of all variants; a dry run only plans them."""
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.sagemaker.deployment.deploy import prepare_archives

    with transfer_line("packaged", quiet=quiet or dry_run) as moved:
        return prepare_archives(spec, output, dry_run=dry_run, progress=moved)


def _serve_locally(
    spec: EndpointSpec, archives: VariantArchives, logs: Path, progress: Progress, *, as_json: bool
) -> None:
    from plansmith.sagemaker.local_mode import LocalMachine, serve_locally
    from plansmith.triton.server.installation import find_installation

    logs.mkdir(parents=True, exist_ok=True)
    results = serve_locally(spec, archives, LocalMachine(find_installation(), logs, progress))
    if as_json:
        click.echo(json.dumps({"endpoint": spec.name, "local": [result.model_dump() for result in results]}))
        return
    rows = [("variant", "archive", "loaded in", "request", "answered in", "answer")]
    for result in results:
        answer = "as its release's" if result.compared else "outputs and shapes of its release"
        seconds = f"{result.load_seconds:.1f} s", f"{result.seconds:.3f} s"
        rows.append((result.variant, result.archive, seconds[0], result.request, seconds[1], answer))
    echo_lines(table(rows))
    click.echo(f"{spec.name} was served on this machine; logs: {short(logs.absolute())}")


def _package_warnings(archives: VariantArchives) -> list[str]:
    """Yield image requirements of the archives as warnings, each line with its variant."""
    from plansmith.cli.sagemaker.package import archive_warnings

    return [f"{name}: {line.strip()}" for name, own in archives.items() for line in archive_warnings(own)]


def _warnings(planned: PlannedDeployment, archives: VariantArchives) -> list[str]:
    from plansmith.sagemaker.endpoint.checks import instance_warnings

    lines = [*_package_warnings(archives), *(f"! {line}" for line in instance_warnings(planned.spec, archives))]
    for name in planned.plan.resets:
        instances = count(planned.desired.instance_counts[name], "instance")
        lines.append(f"{name}: starts again with {instances}, as other variants change with it, and scales from there")
    return lines


def _show(lines: list[str], show: Progress) -> None:
    for line in lines:
        show(line)


def transfer_progress(uploads: tuple[ArchiveUpload, ...], show: Progress) -> Moved:
    """Report the upload of archives in steps of ten percent."""
    from threading import Lock

    from plansmith.formatting import format_bytes

    total = sum(upload.archive.bytes for upload in uploads)
    sent, reported, lock = 0, 0, Lock()

    def moved(size: int) -> None:
        nonlocal sent, reported
        with lock:
            sent += size
            share = 100 * sent // max(total, 1)
            if share >= reported + _REPORTED_SHARE:
                reported = share
                show(f"sent {format_bytes(sent)} of {format_bytes(total)}")

    return moved


def _print_plan(planned: PlannedDeployment, warnings: list[str], *, as_json: bool) -> None:
    """Print the requests in order, as YAML for reading."""
    import yaml

    if as_json:
        click.echo(json.dumps(_document(planned, warnings) | {"dry_run": True}))
        return
    plan = planned.plan
    if planned.is_assumed:
        click.echo("# There are no credentials: AWS was not asked, and nothing is assumed to exist.")
    if plan.is_empty:
        click.echo(f"# Nothing to do: {planned.spec.name} is as the file says.")
        return
    steps: list[dict[str, Any]] = [upload.request.model_dump() for upload in plan.uploads]
    steps += [call.model_dump() for call in plan.before]
    steps += [{"wait_for": "InService"}] if plan.waits else []
    steps += [call.model_dump() for call in (*plan.after, *plan.tagging)]
    click.echo(yaml.safe_dump(steps, sort_keys=False, width=120, allow_unicode=True), nl=False)


def _print_results(planned: PlannedDeployment, results: list[SmokeResult], spec: Path) -> None:
    plan = planned.plan
    for result in results:
        quality = ", within the tolerances of the release," if result.compared else ""
        click.echo(f"{result.subject} answers {result.request}{quality} in {result.seconds:.2f} s")
    if planned.untested:
        click.echo(f"not tested: {', '.join(planned.untested)} ({_untested_reason(planned)})")
    if plan.is_empty:
        click.echo(f"nothing to do: {planned.spec.name} is as the file says, with {plan.config}")
        return
    for name, files in planned.desired.target_models.items():
        more = f" and {len(files) - _SHOWN_ARCHIVES} more" if len(files) > _SHOWN_ARCHIVES else ""
        click.echo(f"requests to {name} name an archive: TargetModel={', '.join(files[:_SHOWN_ARCHIVES])}{more}")
    click.echo(f"{planned.spec.name} is in service with {plan.config}: {_request_count(plan)}")
    click.echo(f"Next: {program()} sagemaker status {short(spec.absolute())}")


def _untested_reason(planned: PlannedDeployment) -> str:
    if planned.spec.smoke_test is None:
        return "smoke_test of the file is off"
    return "no release holds a request that can be sent: name one in smoke_test.body of the file"


def _request_count(plan: DeploymentPlan) -> str:
    return f"{count(len(plan.uploads) + len(plan.calls), 'request')} to AWS"


def _document(planned: PlannedDeployment, warnings: list[str]) -> dict[str, Any]:
    plan = planned.plan
    return {
        "endpoint": planned.spec.name,
        "region": planned.spec.region,
        "config": plan.config,
        "previous": plan.previous,
        "assumed": planned.is_assumed,
        "waits": plan.waits,
        "warnings": warnings,
        "requests": [call.model_dump() for call in (*(upload.request for upload in plan.uploads), *plan.calls)],
        "target_models": {name: list(files) for name, files in planned.desired.target_models.items()},
    }
