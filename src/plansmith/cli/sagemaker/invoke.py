"""`plansmith sagemaker invoke`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.infer.infer import answer_options, input_options
from plansmith.cli.options import complete_file, repository_option
from plansmith.cli.store.options import complete_served
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plansmith.client import SageMakerClient
    from plansmith.sagemaker.signatures import ServedModel
    from plansmith.triton.client.sagemaker.invocation import Invocation

_SETTINGS = ("region", "profile", "url", "target_model", "target_variant", "inference_id", "custom_attributes")

_EPILOG = """\
\b
Examples:
  plansmith sagemaker invoke minilm-prod --model minilm --text "a cat" --text "a dog on a mat"
  plansmith sagemaker invoke vision --model resnet@3 --file cat.jpg --region eu-west-1
  plansmith sagemaker invoke bert-many --archive bert-1.tar.gz --target-model bert-1.tar.gz --text "a cat"
  plansmith sagemaker invoke minilm-prod --model minilm --text "a cat" --target-variant canary --json
  plansmith sagemaker invoke legacy --interface config.pbtxt --random --encoding json --dry-run
  plansmith sagemaker invoke local --model minilm --text "a cat" --url http://127.0.0.1:8080
  plansmith sagemaker invoke minilm-prod --model minilm@3 --check

Exit codes: 0 when the model answered, with --check as it should; 2 inputs that it does not take, an endpoint or archive
that does not exist; 7 a release that is not there; 8 a request that the model refused, or a wrong answer; 9 an endpoint
that is not reached, throttles, is not ready, has no memory (507) or may not be invoked.
"""


@click.command("invoke", epilog=_EPILOG, short_help="Ask a model behind an endpoint.")
@click.argument("endpoint", metavar="ENDPOINT")
@click.option(
    "--model",
    metavar="MODEL[@VERSION]",
    shell_complete=complete_served,
    help="The release that answers, by which its inputs are known; with --archive, the model in it.",
)
@repository_option("Where the release is looked up.")
@click.option(
    "--interface",
    metavar="FILE",
    type=click.Path(path_type=Path),
    shell_complete=complete_file,
    help="Know the inputs by a manifest.json, a config.pbtxt, or JSON with inputs, outputs and max_batch_size.",
)
@click.option(
    "--archive",
    metavar="FILE",
    type=click.Path(path_type=Path),
    shell_complete=complete_file,
    help="Know the inputs by the .tar.gz that the endpoint serves.",
)
@input_options
@click.option("--only", metavar="NAME", multiple=True, help="An output to ask for [all of them].")
@click.option("--target-model", metavar="NAME", default="", help="Of a multi-model endpoint, the archive to ask.")
@click.option("--target-variant", metavar="NAME", default="", help="The variant to ask [each, by its weight].")
@click.option("--inference-id", metavar="ID", default="", help="Goes with the request into captured data.")
@click.option("--custom-attributes", metavar="TEXT", default="", help="Goes with the request to the endpoint.")
@click.option("--region", metavar="NAME", default="", help="Where the endpoint is [AWS_REGION, or the AWS profile's].")
@click.option("--profile", metavar="NAME", default="", help="A profile of the AWS configuration files.")
@click.option("--url", metavar="URL", default="", help="Ask a front end that answers here instead, without AWS.")
@click.option("--encoding", type=click.Choice(["binary", "json"]), default="binary", show_default=True)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=70, show_default=True, metavar="SECONDS")
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    metavar="N",
    help="How often a request is sent at most, where it is throttled or the model is not ready.",
)
@click.option("--check", is_flag=True, help="Send a request that the release holds, and compare the answer with it.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@answer_options
def invoke_command(
    endpoint: str,
    *,
    output: Path | None,
    as_json: bool,
    check: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Send a request to a model behind ENDPOINT and print its answer, or write it to a file.

    SageMaker does not tell what a model takes: name its release, its archive or a file that does. Inputs are given as
    for plansmith infer. A request has 6 MiB at most; a batch above the model's largest is sent in parts, all to the
    variant that answered the first. With --url, SageMaker's front end of a Triton without AWS is asked instead.

    --check needs no inputs: it sends a small request that the release holds, or a random one where none is known, and
    fails where the answer has other outputs, shapes or numbers than the release allows.
    """
    from plansmith.cli.infer.answers import print_answer, require_output
    from plansmith.cli.infer.infer import read_parameters
    from plansmith.cli.infer.inputs import read_input_arguments
    from plansmith.client import SageMakerClient

    if output is not None and not dry_run:
        require_output(output, replace=options["force"])
    model = find_model(endpoint, options)
    arguments = read_input_arguments(options)
    parameters = read_parameters(options["parameters"])
    if check and (not arguments.is_empty or parameters or options["only"] or dry_run or output is not None):
        raise UsageError("--check sends a request of its own", remedy="leave inputs, --dry-run and --output out")
    with SageMakerClient(
        endpoint,
        signature=model.signature,
        model=model.name,
        encoding=options["encoding"],
        timeout_seconds=options["timeout"],
        attempts=options["attempts"],
        **{name: options[name] for name in _SETTINGS},
    ) as client:
        if check:
            _check(client, model, as_json=as_json)
            return
        feed = arguments.feed(model.signature, model.axis_sizes)
        if dry_run:
            invocations = client.invocations(feed, outputs=options["only"], parameters=parameters)
            _print_invocations(endpoint, invocations, as_json=as_json)
            return
        answer = client.ask(feed, outputs=options["only"], parameters=parameters)
    print_answer(model.name, answer, model.signature, output=output, replace=options["force"], as_json=as_json)


def find_model(endpoint: str, options: Mapping[str, Any]) -> ServedModel:
    """Return the model behind an endpoint that the options name.

    Raises:
        UsageError: they do not name it, or twice.
    """
    from plansmith.sagemaker.signatures import model_from_archive, model_from_file, model_from_release
    from plansmith.triton.repository.repository import ModelRepository

    release, interface, archive = options["model"] or "", options["interface"], options["archive"]
    if interface is not None and (archive is not None or release):
        raise UsageError("--interface tells all that is needed of the model", remedy="leave --archive and --model out")
    if interface is not None:
        return model_from_file(interface)
    if archive is not None:
        return model_from_archive(archive, release)
    if release:
        return model_from_release(ModelRepository(options["repository"]), release)
    raise UsageError(
        f"it is not known what the model behind {endpoint} takes, and SageMaker does not tell",
        remedy="name its release (--model MODEL[@VERSION], of --repository), its archive (--archive FILE.tar.gz), or a"
        " manifest.json or config.pbtxt of it (--interface FILE)",
    )


def _check(client: SageMakerClient, model: ServedModel, *, as_json: bool) -> None:
    """Send the release's example request and print that the response is as expected."""
    from plansmith.sagemaker.signatures import check_example

    result = check_example(client, model)
    if as_json:
        click.echo(json.dumps({"model": model.name, **result.model_dump(mode="json")}))
        return
    variant = f" of variant {result.variant}" if result.variant else ""
    criterion = (
        "within the tolerances of the release"
        if result.compared
        else "with outputs, shapes and finite numbers as its signature says"
    )
    click.echo(
        f"{model.name}, version {result.version}{variant}, answered {result.request} {criterion},"
        f" in {result.seconds:.3f} s"
    )


def _print_invocations(endpoint: str, invocations: Sequence[Invocation], *, as_json: bool) -> None:
    """Print headers and sizes of invocation requests."""
    requests = [
        ({"Content-Type": invocation.content_type, **invocation.headers}, len(invocation.body))
        for invocation in invocations
    ]
    if as_json:
        documents = [{"headers": headers, "bytes": size} for headers, size in requests]
        click.echo(json.dumps({"endpoint": endpoint, "dry_run": True, "requests": documents}))
        return
    for number, (headers, size) in enumerate(requests, 1):
        which = f" {number} of {len(requests)}" if len(requests) > 1 else ""
        click.echo(f"request{which} to {endpoint}: {size} bytes, not sent")
        for name, value in headers.items():
            click.echo(f"  {name}: {value}")
