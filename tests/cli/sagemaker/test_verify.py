"""`plansmith sagemaker verify` as a person types it, against moto over HTTP."""

from __future__ import annotations

import pytest

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.sagemaker.cloudwatch import REGION, CloudWatchAccount

pytestmark = pytest.mark.slow


def test_verify(run: InProcess, cloudwatch_account: CloudWatchAccount) -> None:
    """An endpoint that serves as it should ends with 0, one that does not with 8 and its findings."""
    endpoint = cloudwatch_account.endpoint("blue", "green", data=cloudwatch_account.archive())
    for variant in ("blue", "green"):
        endpoint.serve(variant)
    command = ("sagemaker", "verify", endpoint.name, "--since", "1h")
    answer = run(*command, "--max-error-rate", "1%", "--max-p99-ms", "50")
    assert (answer.status, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == f"{endpoint.name} in {REGION}: InService, 2 variants"
    assert "/ranker.tar.gz, by 763104351884.dkr.ecr" in lines[2]
    assert "20 requests, 0 failed (0 %), p99 of the container 40 ms" in lines[3]
    assert lines[-1] == "  all as it should be"
    answer = run(*command, "--max-p99-ms", "10", "--json")
    assert answer.status == 8
    assert [finding["variant"] for finding in answer.document["findings"]] == ["blue", "green"]
    assert f"the endpoint {endpoint.name} does not serve as it should: blue: the p99" in answer.message
    assert f"plansmith sagemaker metrics {endpoint.name} --region {REGION}" in answer.message
    assert "  !! green: the p99" in run(*command, "--max-p99-ms", "10").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), (f"SageMaker in {REGION} refuses describe endpoint", "list-endpoints")),
        (("--max-error-rate", "5"), ("'5' is no rate", "1%")),
        (("--since", "yesterday"), ("'yesterday' is no time",)),
    ],
)
@pytest.mark.usefixtures("cloudwatch_account")
def test_refusals(arguments: tuple[str, ...], message: tuple[str, ...], run: InProcess) -> None:
    """A limit that is none, or an endpoint that does not exist, is refused."""
    check_refusal(run("sagemaker", "verify", "nobody", *arguments, "--json"), 2, message)
