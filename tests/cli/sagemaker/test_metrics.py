"""`plansmith sagemaker metrics` and `alarms` as a person types them, against moto over HTTP."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.sagemaker.cloudwatch import REGION, CloudWatchAccount, Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cloudwatch_account")]

TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"


@pytest.fixture
def endpoint(cloudwatch_account: CloudWatchAccount) -> Endpoint:
    """An endpoint of two variants, of which one answered 20 requests."""
    served = cloudwatch_account.endpoint("blue", "green")
    served.serve("blue")
    return served


def cells(printed: str) -> dict[str, list[str]]:
    """The cells of the table by their labels."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return {label: rest for label, *rest in rows if rest}


def test_table(run: InProcess, endpoint: Endpoint) -> None:
    """The table has a column for each variant, and says what CloudWatch has nothing of."""
    answer = run("sagemaker", "metrics", endpoint.name, "--since", "1h")
    assert (answer.status, answer.stderr) == (0, "")
    first, blue, green, *_, last = answer.stdout.splitlines()
    assert first.startswith(f"{endpoint.name} in {REGION}: InService, 2 variants; ")
    assert first.endswith(" UTC, a minute a point")
    assert blue == "  blue: 2 of ml.g4dn.xlarge, weight 1"
    assert "the endpoint is new" in green
    table = cells(answer.stdout)
    assert table["METRIC"] == ["blue", "green"]
    assert table["invocations"] == ["20", "none"]
    assert table["container latency, p99"] == ["40 ms", "none"]
    assert table["total latency, mean"] == ["21 ms", "none"]
    assert table["GPU, largest"] == ["44 %", "none"]
    assert last.startswith("  CloudWatch has no values of: memory, disk, loaded models per instance, ")
    assert cells(run("sagemaker", "metrics", endpoint.name, "--variant", "blue").stdout)["METRIC"] == ["blue"]


def test_json_and_plot(run: InProcess, endpoint: Endpoint) -> None:
    """The document has all points, and the page replaces an older one."""
    page = run.folder / "ranker.html"
    page.write_text("older")
    answer = run("sagemaker", "metrics", endpoint.name, "--json", "--period", "5m", "--plot", "ranker.html")
    document = answer.document
    assert (document["endpoint"], document["period_seconds"]) == (endpoint.name, 300)
    (p99,) = [
        statistic
        for statistic in document["variants"][0]["statistics"]
        if (statistic["metric"], statistic["statistic"]) == ("ModelLatency", "p99")
    ]
    assert (p99["unit"], p99["total"], {value for _, value in p99["points"]}) == ("ms", 40.0, {40.0})
    assert f"<title>{endpoint.name} in {REGION}: metrics</title>" in page.read_text()
    refused = run("sagemaker", "metrics", endpoint.name, "--plot", "nowhere/ranker.html", "--json")
    check_refusal(refused, 2, ("cannot write nowhere/ranker.html", "choose another --plot"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), (f"SageMaker in {REGION} refuses describe endpoint", "another --region")),
        (("nobody", "--region", "eu west"), ("'eu west' is no region of AWS", "eu-west-1")),
        (("a_b",), ("'a_b' is no name of an endpoint", "list-endpoints")),
        (("nobody", "--since", "yesterday"), ("'yesterday' is no time", "3h")),
        (("nobody", "--since", "20d", "--period", "1m"), ("no points of 1 min", "multiple of 5m")),
        (("nobody", "--period", "0"), ("of no time", "1m")),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: tuple[str, ...], run: InProcess) -> None:
    """What cannot be read is one message with a remedy."""
    check_refusal(run("sagemaker", "metrics", *arguments, "--json"), 2, message)


def test_unknown_variant(run: InProcess, endpoint: Endpoint) -> None:
    """A variant that does not exist is refused with those that do."""
    refused = run("sagemaker", "metrics", endpoint.name, "--variant", "red", "--json")
    check_refusal(refused, 2, ("no variant 'red'", "its variants: blue, green"))


@pytest.mark.parametrize("command", ["metrics", "verify", "alarms"])
def test_region_is_required(command: str, run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a region in an option, the environment or the profile, none is guessed."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    refused = run("sagemaker", command, "ranker", "--json")
    check_refusal(refused, 2, ("no region is named", "--region eu-west-1, or export AWS_REGION"))


def test_unreachable(run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing credentials, and a network without AWS, are environment errors."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        refused = run("sagemaker", "metrics", "ranker", "--json")
        check_refusal(refused, 9, (f"SageMaker in {REGION} cannot be reached", "the region and the network"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    check_refusal(run("sagemaker", "metrics", "ranker", "--json"), 9, ("no usable AWS credentials", "AWS_PROFILE"))


def test_alarms(run: InProcess, cloudwatch_account: CloudWatchAccount, endpoint: Endpoint) -> None:
    """A dry run prints the exact calls and makes none; then alarms are created once, and deleted."""
    options = ("--limit", "p99-ms=200", "--limit", "disk-percent=off", "--variant", "blue", "--notify", TOPIC)
    command = ("sagemaker", "alarms", endpoint.name, *options)
    *calls, last = run(*command, "--dry-run").stdout.splitlines()
    assert last == "3 alarms would be created or updated; nothing was changed"
    assert cloudwatch_account.cloudwatch.describe_alarms()["MetricAlarms"] == []
    planned = [json.loads(shlex.split(call)[-1]) for call in calls]
    for call in calls:
        assert call.startswith(f"aws cloudwatch put-metric-alarm --region {REGION} --cli-input-json ")
    document = run(*command, "--json").document
    assert [alarm["change"] for alarm in document["alarms"]] == ["create"] * 3
    assert [alarm["parameters"] for alarm in document["alarms"]] == planned
    stored = cloudwatch_account.cloudwatch.describe_alarms()["MetricAlarms"]
    assert {alarm["AlarmName"].rpartition("-blue-")[2] for alarm in stored} == {
        *("5xx-percent", "p99-ms", "memory-percent")
    }
    assert {action for alarm in stored for action in alarm["AlarmActions"]} == {TOPIC}
    again = run(*command).stdout.splitlines()
    assert again[0] == f"{endpoint.name} in {REGION}: 3 alarms"
    assert [line.split()[0] for line in again[1:]] == ["unchanged"] * 3
    silent = run(*command[:-2]).stdout.splitlines()
    assert silent[-1] == "They notify nobody: name a topic with --notify ARN"
    delete = ("sagemaker", "alarms", endpoint.name, "--delete")
    assert run(*delete, "--dry-run").stdout.startswith(f"aws cloudwatch delete-alarms --region {REGION} --alarm-names ")
    assert run(*delete).stdout == f"3 alarms of {endpoint.name} in {REGION} deleted\n"
    assert cloudwatch_account.cloudwatch.describe_alarms()["MetricAlarms"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "p98-ms=200"), ("names no limit", "p99-ms")),
        (("--limit", "p99-ms=fast"), ("no number that is a limit", "p99-ms=off")),
        (("--limit", "p99-ms=nan"), ("no number that is a limit",)),
        (("--delete", "--variant", "blue"), ("--delete takes all alarms", "leave the other options out")),
    ],
)
def test_alarm_refusals(arguments: tuple[str, ...], message: tuple[str, ...], run: InProcess) -> None:
    """A limit that does not exist or is no number is refused before AWS is asked."""
    check_refusal(run("sagemaker", "alarms", "ranker", *arguments, "--json"), 2, message)
