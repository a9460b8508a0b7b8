"""`plansmith sagemaker package`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_model, complete_target, repository_option
from plansmith.cli.output import echo_lines, program, require_text, short, table, without_empty_columns
from plansmith.cli.store.options import Reach, complete_served, reach_options
from plansmith.errors import UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.sagemaker.archives import Archive, ArchivePlan
    from plansmith.sagemaker.registry import ApprovalStatus, Registration, Upload
    from plansmith.stores.backend.s3 import S3Objects


_OUTPUT = Path("artifacts") / "sagemaker"

_COLUMNS = ("archive", "release", "models", "size", "SHA-256", "served by", "GPUs", "unchanged", "uploaded")

_EPILOG = """\
\b
Examples:
  plansmith sagemaker package minilm
  plansmith sagemaker package minilm@3 --output model.tar.gz
  plansmith sagemaker package minilm --upload s3://models/sagemaker
  plansmith sagemaker package bert resnet50 --multi-model --output archives
  plansmith sagemaker package bert --multi-model --copies 5 --output archives
  plansmith sagemaker package router words --default-model router
  plansmith sagemaker package resnet50 --repository cpu --target sagemaker-26.05-cpu

Exit codes: 0 when all archives are there; 2 models and options that do not fit together; 6 a release that was compiled
for no image of SageMaker; 7 one that is not there, withdrawn, damaged or refused by a container, or an archive of that
name with other content; 9 a bucket that cannot be reached.
"""

_STATUS: dict[str, ApprovalStatus] = {
    "approved": "Approved",
    "pending": "PendingManualApproval",
    "rejected": "Rejected",
}
_REGISTER_EPILOG = """\
\b
Examples:
  plansmith sagemaker register minilm --group minilm --upload s3://models/sagemaker
  plansmith sagemaker register minilm@3 --group minilm --upload s3://models/sagemaker --status approved
  plansmith sagemaker register minilm --group minilm --upload s3://models/sagemaker --dry-run

Exit codes: 0 when it is registered; 2 options that do not fit together; 6 a release that was compiled for no image of
SageMaker; 7 one that is not there, withdrawn or damaged, or other content under its name in S3; 9 no credentials, a
permission that is missing, or AWS does not answer.
"""


@click.command("package", epilog=_EPILOG, short_help="Make archives (model.tar.gz) of releases for an endpoint.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL[@VERSION]...", shell_complete=complete_served)
@repository_option("Where the releases are.")
@click.option(
    "--output",
    metavar="FILE|DIR",
    type=click.Path(path_type=Path),
    default=_OUTPUT,
    show_default=True,
    shell_complete=complete_file,
    help="The archive, which ends in .tar.gz; or the folder that takes archives under unique names.",
)
@click.option("--multi-model", is_flag=True, help="One archive for each model, for a multi-model endpoint.")
@click.option(
    "--copies",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Renamed copies of each model, to size a multi-model endpoint.",
)
@click.option(
    "--default-model",
    metavar="MODEL",
    default="",
    shell_complete=complete_model,
    help="The model of several in one archive that the endpoint serves.",
)
@click.option(
    "--target",
    metavar="NAME|FILE",
    shell_complete=complete_target,
    help="The image that will serve them, where they were compiled for another target; they are checked for it.",
)
@click.option("--upload", metavar="s3://BUCKET/PREFIX", help="Send the archives there, unless they are there.")
@reach_options
@click.option("--dry-run", is_flag=True, help="Check, say what would be made and sent, and do neither.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def package_command(
    models: tuple[str, ...],
    repository: Path,
    output: Path,
    target: str | None,
    upload: str | None,
    *,
    reach: Reach,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Build release archives for SageMaker's Triton containers; of the newest version if none is named.

    Every archive is checked as `plansmith check --sagemaker` does before it appears; an ensemble or a script comes with
    its members. The same release gives the same bytes on any machine, and an archive that is there is never
    overwritten, on the disk or in S3. Nothing in it is compressed, so that a container unpacks it sooner.

    A release for another target than SageMaker's images is refused, unless --target names the image that will serve it:
    ONNX Runtime and Python models may well run there, and are checked for the versions of that image.
    """
    from plansmith.config.targets import load_target
    from plansmith.sagemaker.archives import plan_archives
    from plansmith.sagemaker.registry import plan_upload
    from plansmith.sagemaker.selection import PackageRequest
    from plansmith.triton.repository.repository import ModelRepository

    require_text(*models, str(output))
    if upload is None and reach.values:
        raise UsageError(f"{reach.options} is for --upload", remedy="pass --upload s3://BUCKET/PREFIX")
    objects = archive_bucket(upload, reach) if upload is not None else None
    request = PackageRequest(releases=models, target=load_target(target) if target else None, **options)
    plans = plan_archives(ModelRepository(repository), request, output)
    if dry_run:
        archives = [plan.archive for plan in plans]
        uploads = [plan_upload(objects, archive) for archive in archives] if objects else []
    else:
        archives = write_archives(plans, quiet=quiet or as_json)
        uploads = upload_archives(archives, objects, quiet=quiet or as_json) if objects else []
    if as_json:
        click.echo(json.dumps(_document(archives, uploads, plans, dry_run=dry_run)))
    else:
        echo_lines(_lines(archives, uploads, plans, dry_run=dry_run))


def archive_bucket(upload: str, reach: Reach) -> S3Objects:
    """Return the S3 prefix that archives are uploaded to.

    Raises:
        UsageError: it is none.
    """
    from plansmith.stores.backend.s3 import S3Objects

    place = reach.place(upload, "--upload")
    if not place.is_s3:
        raise UsageError(f"--upload {upload} is a folder", remedy="write s3://BUCKET/PREFIX; or --output for a folder")
    return S3Objects(place, Path.cwd())


def write_archives(plans: Sequence[ArchivePlan], *, quiet: bool) -> list[Archive]:
    """Build archives, with a progress line."""
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.sagemaker.archives import write_archive

    with transfer_line("packaged", quiet=quiet) as moved:
        return [write_archive(plan, moved) for plan in plans]


def upload_archives(archives: Sequence[Archive], objects: S3Objects, *, quiet: bool) -> list[Upload]:
    """Upload archives that are missing in S3, with a progress line."""
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.sagemaker.registry import upload_archive

    with transfer_line("sent", quiet=quiet) as moved:
        return [upload_archive(objects, archive, moved) for archive in archives]


def _document(
    archives: Sequence[Archive], uploads: Sequence[Upload], plans: Sequence[ArchivePlan], *, dry_run: bool
) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "archives": [archive.model_dump(mode="json") for archive in archives],
        "uploads": [upload.model_dump(mode="json") for upload in uploads],
        "warnings": [finding.model_dump(mode="json") for plan in plans for finding in plan.warnings],
    }


def _lines(
    archives: Sequence[Archive], uploads: Sequence[Upload], plans: Sequence[ArchivePlan], *, dry_run: bool
) -> list[str]:
    cells = zip_longest(archives, uploads)
    rows = without_empty_columns([_COLUMNS, *(_cells(item, upload, dry_run=dry_run) for item, upload in cells)])
    lines = table(rows)
    if len(archives) == 1:
        (_, *names), (file, *values) = rows
        lines = [file, *(f"  {line}" for line in table(list(zip(names, values, strict=True))))]
    for finding in dict.fromkeys(finding for plan in plans for finding in plan.warnings):
        lines += [f"  ! {finding.place}: {finding.message}", f"    → {finding.remedy}"]
    lines += archive_warnings(archives)
    environment = {name: value for archive in archives for name, value in archive.environment.items()}
    lines += [f"set at the endpoint: {name}={value}" for name, value in environment.items()]
    if dry_run:
        lines.append(f"{count(len(archives), 'archive')} would be made; nothing was written")
    elif archives[0].multi_model:
        place = uploads[0].uri.rpartition("/")[0] if uploads else "s3://BUCKET/PREFIX"
        lines.append(f"Next: a model of SageMaker with Mode=MultiModel and ModelDataUrl={place}/")
        lines.append(f"      a request names its archive, TargetModel={Path(archives[0].file).name}")
    elif uploads:
        lines.append(f"Next: a model of SageMaker with ModelDataUrl={uploads[0].uri}")
    else:
        model = f" {archives[0].default_model}" if len(archives[0].models) > 1 else ""
        file = short(Path(archives[0].file).absolute())
        lines.append(f"Next: {program()} serve --sagemaker{model} --repository {file}")
        lines.append("      the same command with --upload s3://BUCKET/PREFIX sends it")
    return lines


def _cells(archive: Archive, upload: Upload | None, *, dry_run: bool) -> tuple[str, ...]:
    from plansmith.formatting import format_bytes

    others = len(archive.models) - 1
    sending = "would be sent" if dry_run else "sent"
    return (
        short(Path(archive.file).absolute()),
        ", ".join(archive.releases),
        archive.default_model + (f" and {others} more" if others else ""),
        format_bytes(archive.bytes),
        archive.digest[:12],
        f"{archive.target}, {archive.device.upper()} instances",
        _gpus(archive),
        "was there already" if archive.unchanged else "",
        "" if upload is None else f"{upload.uri}, {sending if upload.sent else 'was there already'}",
    )


def _gpus(archive: Archive) -> str:
    """Return the GPUs that the plans were built for; empty without plans."""
    if not archive.compute_capabilities:
        return ""
    others = " and others of Ampere or later" if archive.hardware_compatibility == "ampere_plus" else ""
    newer = " or newer" if archive.version_compatible else ""
    return f"compute capability {', '.join(archive.compute_capabilities)}{others}, TensorRT {archive.tensorrt}{newer}"


def archive_warnings(archives: Sequence[Archive]) -> list[str]:
    """Return warnings on models that no request reaches, and packages that an image may lack."""
    lines = []
    for archive in archives:
        if len(archive.releases) > 1:
            others = ", ".join(archive.releases[1:])
            lines.append(f"  ! the endpoint answers by {archive.default_model} alone: no request reaches {others}")
    models: dict[tuple[str, ...], list[str]] = {}
    for archive in archives:
        for model, packages in archive.image_packages.items():
            models.setdefault(packages, []).append(model)
    for packages, names in models.items():
        subject = names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
        lines.append(f"  ! {subject} brings no packages, and needs an image whose Python has {', '.join(packages)}")
    if models:
        lines.append("    → compile with python: {environment: packed} in the spec, or make such an image")
    return lines


@click.command("register", epilog=_REGISTER_EPILOG, short_help="Make a release a version of a model package group.")
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
    """Register a release as a version of a group in the SageMaker Model Registry, for approval by users.

    The package has the archive, the image, the variables of the endpoint, the instance types that can serve it, the
    report of the accuracy gate as its metrics, and what the release is as metadata. A release that is registered
    already is left alone, but for its --status. An endpoint whose file names the group deploys what was approved.
    """
    from plansmith.config.targets import load_target
    from plansmith.sagemaker.archives import plan_archives
    from plansmith.sagemaker.endpoint.instances import image_uri
    from plansmith.sagemaker.registry import ModelRegistry, PackageContent, plan_registration, register
    from plansmith.sagemaker.selection import PackageRequest
    from plansmith.system.aws.client import resolve_region
    from plansmith.triton.repository.repository import ModelRepository

    objects = archive_bucket(upload, reach)
    models = ModelRepository(repository)
    target = load_target(container["target"]) if container["target"] else None
    plans = plan_archives(models, PackageRequest(releases=(model,), target=target), container["output"])
    (archive,) = write_archives(plans, quiet=quiet or as_json)
    region = resolve_region(reach.values.get("region", ""))
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
        click.echo(json.dumps(_registration_document(done) | {"dry_run": False, "uploaded": sent.sent}))
    else:
        echo_lines(_registration_lines(done))


def _print_plan(planned: Registration, *, as_json: bool) -> None:
    """Print the calls in order, as YAML for reading."""
    import yaml

    if as_json:
        click.echo(json.dumps(_registration_document(planned) | {"dry_run": True}))
    elif planned.calls:
        click.echo(yaml.safe_dump(_calls(planned), sort_keys=False, width=120, allow_unicode=True), nl=False)
    else:
        click.echo(f"# nothing to do: {planned.release} is {planned.arn}, {planned.status}")


def _registration_document(registration: Registration) -> dict[str, Any]:
    return {**registration.model_dump(mode="json", exclude={"calls"}), "calls": _calls(registration)}


def _calls(registration: Registration) -> list[dict[str, Any]]:
    return [call.model_dump() for call in registration.calls]


def _registration_lines(done: Registration) -> list[str]:
    state = "registered" if done.calls else "registered already"
    rows = [
        ("group", done.group),
        ("status", done.status),
        ("image", done.image),
        ("archive", done.model_data_url),
        ("metrics", done.metrics_url),
    ]
    lines = [f"{done.release} is {state}: {done.arn}", *(f"  {line}" for line in table(rows))]
    if done.status == _STATUS["rejected"]:
        return lines
    if done.status == _STATUS["pending"]:
        lines.append(f"Next: approve it in SageMaker Studio; or {program()} sagemaker register with --status approved")
    else:
        lines.append(f"Next: model_package_group: {done.group} in the file of an endpoint deploys what is approved")
    return lines
