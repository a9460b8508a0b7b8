"""`plansmith sagemaker register`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_target, repository_option
from plansmith.cli.sagemaker.package import archive_bucket, upload_archives, write_archives
from plansmith.cli.store.completion import complete_served
from plansmith.cli.store.options import Reach, reach_options
from plansmith.cli.text import echo_lines, program, table

if TYPE_CHECKING:
    from plansmith.sagemaker.registry import ApprovalStatus, Registration

_STATUS: dict[str, ApprovalStatus] = {
    "approved": "Approved",
    "pending": "PendingManualApproval",
    "rejected": "Rejected",
}

_EPILOG = """\
\b
Examples:
  plansmith sagemaker register minilm --group minilm --upload s3://models/sagemaker
  plansmith sagemaker register minilm@3 --group minilm --upload s3://models/sagemaker --status approved
  plansmith sagemaker register minilm --group minilm --upload s3://models/sagemaker --dry-run

Exit codes: 0 when it is registered; 2 options that do not fit together; 6 a release that was compiled for no image of
SageMaker; 7 one that is not there, withdrawn or damaged, or other content under its name in S3; 9 no credentials, a
permission that is missing, or AWS does not answer.
"""


@click.command("register", epilog=_EPILOG, short_help="Make a release a version of a model package group.")
@click.argument("model", metavar="MODEL[@VERSION]", shell_complete=complete_served)
@repository_option("Where the release is.")
@click.option("--group", required=True, metavar="NAME", help="The model package group; created where there is none.")
@click.option("--upload", required=True, metavar="s3://BUCKET/PREFIX", help="Where its archive and its report go.")
@click.option(
    "--status",
    type=click.Choice(list(_STATUS)),
    help="Whether it may be deployed; left as it is when left out, and pending for a new one.",
)
@click.option(
    "--target",
    metavar="NAME|FILE",
    shell_complete=complete_target,
    help="The image that will serve it, where it was compiled for another target; it is checked for it.",
)
@click.option("--image", metavar="URI", default="", help="An image of your own; that of the target in the region.")
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("artifacts") / "sagemaker",
    show_default=True,
    help="The folder that takes the archive.",
)
@reach_options
@click.option("--dry-run", is_flag=True, help="Check, print the exact calls, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def register_command(
    model: str,
    repository: Path,
    group: str,
    upload: str,
    *,
    status: str | None,
    reach: Reach,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **container: Any,
) -> None:
    """Make a release a version of a group in the SageMaker Model Registry, by which people approve it.

    The package has the archive, the image, the variables of the endpoint, the instance types that can serve it, the
    report of the accuracy gate as its metrics, and what the release is as metadata. A release that is registered
    already is left alone, but for its --status. An endpoint whose file names the group deploys what was approved.
    """
    from plansmith.config.target.targets import load_target
    from plansmith.sagemaker.archives import plan_archives
    from plansmith.sagemaker.endpoint.images import image_uri
    from plansmith.sagemaker.registry import ModelRegistry, PackageContent, plan_registration, register
    from plansmith.sagemaker.selection import PackageRequest
    from plansmith.system.aws.client import current_region
    from plansmith.triton.repository.repository import ModelRepository

    objects = archive_bucket(upload, reach)
    models = ModelRepository(repository)
    target = load_target(container["target"]) if container["target"] else None
    plans = plan_archives(models, PackageRequest(releases=(model,), target=target), container["output"])
    (archive,) = write_archives(plans, quiet=quiet or as_json)
    region = reach.given.get("region") or current_region()
    name, _, version = archive.releases[0].partition("@")
    content = PackageContent(
        manifest=models.manifest(name, int(version)),
        archive=archive,
        image=container["image"] or image_uri(load_target(archive.target), archive.device, region),
        folder=str(objects.place),
    )
    with ModelRegistry(region) as registry:
        planned = plan_registration(registry, group, _STATUS[status] if status else None, content)
        if dry_run:
            _print_plan(planned, as_json=as_json)
            return
        (sent,) = upload_archives([archive], objects, quiet=quiet or as_json)
        done = register(registry, objects, content, planned)
    if as_json:
        click.echo(json.dumps(_document(done) | {"dry_run": False, "uploaded": sent.sent}))
    else:
        echo_lines(_lines(done))


def _print_plan(planned: Registration, *, as_json: bool) -> None:
    """The calls in their order; YAML for a person."""
    import yaml

    if as_json:
        click.echo(json.dumps(_document(planned) | {"dry_run": True}))
    elif planned.calls:
        click.echo(yaml.safe_dump(_calls(planned), sort_keys=False, width=120, allow_unicode=True), nl=False)
    else:
        click.echo(f"# nothing to do: {planned.release} is {planned.arn}, {planned.status}")


def _document(found: Registration) -> dict[str, Any]:
    return {**found.model_dump(mode="json", exclude={"calls"}), "calls": _calls(found)}


def _calls(found: Registration) -> list[dict[str, Any]]:
    return [call.model_dump() for call in found.calls]


def _lines(done: Registration) -> list[str]:
    what = "registered" if done.calls else "registered already"
    rows = [
        ("group", done.group),
        ("status", done.status),
        ("image", done.image),
        ("archive", done.model_data_url),
        ("metrics", done.metrics_url),
    ]
    lines = [f"{done.release} is {what}: {done.arn}", *(f"  {line}" for line in table(rows))]
    if done.status == _STATUS["rejected"]:
        return lines
    if done.status == _STATUS["pending"]:
        lines.append(f"Next: approve it in SageMaker Studio; or {program()} sagemaker register with --status approved")
    else:
        lines.append(f"Next: model_package_group: {done.group} in the file of an endpoint deploys what is approved")
    return lines
