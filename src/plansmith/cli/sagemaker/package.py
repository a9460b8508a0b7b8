"""`plansmith sagemaker package`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_model, complete_target, repository_option
from plansmith.cli.store.completion import complete_served
from plansmith.cli.store.options import Reach, reach_options
from plansmith.cli.text import count, echo_lines, program, require_text, short, table, without_empty_columns
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.sagemaker.archives import Archive, ArchivePlan
    from plansmith.sagemaker.upload import Upload
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
    """Make archives of releases as SageMaker's Triton containers take them; of the newest version where none is named.

    Every archive is checked as `plansmith check --sagemaker` does before it appears; an ensemble or a script comes with
    its members. The same release gives the same bytes on any machine, and an archive that is there is never
    overwritten, on the disk or in S3. Nothing in it is compressed, so that a container unpacks it sooner.

    A release for another target than SageMaker's images is refused, unless --target names the image that will serve it:
    ONNX Runtime and Python models may well run there, and are checked for the versions of that image.
    """
    from plansmith.config.target.targets import load_target
    from plansmith.sagemaker.archives import plan_archives
    from plansmith.sagemaker.selection import PackageRequest
    from plansmith.sagemaker.upload import plan_upload
    from plansmith.triton.repository.repository import ModelRepository

    require_text(*models, str(output))
    if upload is None and reach.given:
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
    """The prefix that archives are sent to.

    Raises:
        UsageError: it is none.
    """
    from plansmith.stores.backend.s3 import S3Objects

    place = reach.place(upload, "--upload")
    if not place.is_s3:
        raise UsageError(f"--upload {upload} is a folder", remedy="write s3://BUCKET/PREFIX; or --output for a folder")
    return S3Objects(place, Path.cwd())


def write_archives(plans: Sequence[ArchivePlan], *, quiet: bool) -> list[Archive]:
    """Make archives, with a line of progress."""
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.sagemaker.archives import write_archive

    with transfer_line("packaged", quiet=quiet) as moved:
        return [write_archive(plan, moved) for plan in plans]


def upload_archives(archives: Sequence[Archive], objects: S3Objects, *, quiet: bool) -> list[Upload]:
    """Send archives that are not there, with a line of progress."""
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.sagemaker.upload import upload_archive

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
    rows = without_empty_columns([_COLUMNS, *(_cells(one, upload, dry_run=dry_run) for one, upload in cells)])
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
    """The GPUs that its plans are for; empty without plans."""
    if not archive.compute_capabilities:
        return ""
    others = " and others of Ampere or later" if archive.hardware_compatibility == "ampere_plus" else ""
    newer = " or newer" if archive.version_compatible else ""
    return f"compute capability {', '.join(archive.compute_capabilities)}{others}, TensorRT {archive.tensorrt}{newer}"


def archive_warnings(archives: Sequence[Archive]) -> list[str]:
    """Models that no request reaches, and packages that an image may not have."""
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
        who = names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
        lines.append(f"  ! {who} brings no packages, and needs an image whose Python has {', '.join(packages)}")
    if models:
        lines.append("    → compile with python: {environment: packed} in the spec, or make such an image")
    return lines
