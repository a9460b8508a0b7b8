"""`plansmith sagemaker recommend` as a person types it: what starts a job, what is in it, and what it found."""

from __future__ import annotations

import io
import tarfile
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from plansmith.loadtest.results import LoadReport
from plansmith.system.aws.service import Call, require_valid
from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.command import Answer, check_refusal
from ...support.cli.in_process import InProcess
from ...support.loadtest.reports import example_report
from ...support.sagemaker.account import AwsAccount, account, aws_endpoint, loader
from ...support.sagemaker.endpoints import ROLE, write_endpoint
from ...support.sagemaker.recommender import AWS_EXAMPLE, Recommender, configuration
from ...support.sagemaker.releases import publish_onnx
from ...support.servers.aws_server import aws, s3_server

__all__ = ["account", "aws", "aws_endpoint", "loader", "s3_server"]

PHASE = {"InitialNumberOfUsers": 1, "SpawnRate": 1, "DurationInSeconds": 300}
ADVANCED: dict[str, Any] = {
    "instance_types": ["ml.c5.xlarge", "ml.m5.large"],
    "environment": {"SAGEMAKER_TRITON_THREAD_COUNT": ["4", "8"]},
    "phases": [PHASE],
    "stop_when": {"max_invocations": 1000, "p95_ms": 100},
    "max_parallel_tests": 2,
}
CREATE = "create_inference_recommendations_job"


class Commands:
    """The command line beside the file of an endpoint that serves `tiny`, and a recommender."""

    def __init__(self, run: InProcess, account: AwsAccount, patch: pytest.MonkeyPatch) -> None:
        self._run = run
        self.folder = run.folder
        self.account = account
        self.plane = account.plane
        self.recommender = Recommender([configuration("ml.c5.xlarge", AWS_EXAMPLE)])
        self.recommender.attach(patch)
        publish_onnx(ModelRepository(run.folder / "artifacts" / "repository"), run.folder / "made", "tiny")
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the file."""
        variant = {"models": ["tiny"], "instance_type": "ml.m5.large", **changes.pop("variant", {})}
        values = {"name": self.account.name, "bucket": f"s3://{self.account.bucket}/sm", "variant": variant}
        write_endpoint(self.folder, **{**values, **changes})

    def __call__(self, *arguments: str, command: str = "recommend") -> Answer:
        """Run a command about the endpoint."""
        self.plane.requests.clear()
        return self._run("sagemaker", command, "endpoint.yaml", *arguments)

    @property
    def job(self) -> str:
        """The name of the last job."""
        return list(self.recommender.jobs)[-1]


@pytest.fixture
def commands(run: InProcess, account: AwsAccount, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(run, account, monkeypatch)


def test_advanced_job(commands: Commands) -> None:
    """A dry run prints the requests of an advanced job and what it takes; --yes sends exactly these."""
    commands.write(recommendation_job=ADVANCED)
    printed = commands("--dry-run")
    assert printed.status == 0, printed
    assert commands.plane.changes() == []
    hours = "10 min 00 s of ml.c5.xlarge, 10 min 00 s of ml.m5.large"
    assert [line for line in printed.stdout.splitlines() if line.startswith("#")] == [
        "# an advanced job: 4 load tests of 5 min 00 s, 2 at a time, 2 h 00 min at most",
        f"# its load takes {hours} at most; the start of instances is billed as well",
        "# sample requests: a random request",
        "# ! the release holds no request, and a random one is sent: name real ones in payload",
    ]
    steps = yaml.safe_load(printed.stdout)
    assert [step["operation"] for step in steps] == ["upload_file", "put_object", "create_model", CREATE]
    for step in steps[2:]:
        require_valid(Call(**step), enums=True)
    job = steps[-1]["parameters"]
    inputs = job["InputConfig"]
    assert (job["JobType"], job["RoleArn"], job["JobDescription"]) == ("Advanced", ROLE, "plansmith: tiny@1")
    assert job["StoppingConditions"] == {
        "FlatInvocations": "Stop",
        "MaxInvocations": 1000,
        "ModelLatencyThresholds": [{"Percentile": "P95", "ValueInMilliseconds": 100}],
    }
    assert inputs["ModelName"] == steps[2]["parameters"]["ModelName"]
    assert inputs["TrafficPattern"] == {"TrafficType": "PHASES", "Phases": [PHASE]}
    assert inputs["ResourceLimit"] == {"MaxNumberOfTests": 4, "MaxParallelOfTests": 2}
    ranges = {"CategoricalParameterRanges": [{"Name": "SAGEMAKER_TRITON_THREAD_COUNT", "Value": ["4", "8"]}]}
    assert inputs["EndpointConfigurations"] == [
        {"InstanceType": name, "EnvironmentParameterRanges": ranges} for name in ("ml.c5.xlarge", "ml.m5.large")
    ]
    key = steps[1]["parameters"]["Key"]
    assert inputs["ContainerConfig"]["PayloadConfig"]["SamplePayloadUrl"] == f"s3://{commands.account.bucket}/{key}"
    assert commands("--yes").status == 0
    assert commands.plane.changes() == ["create_model", CREATE]
    sent = {name: value for name, value in commands.recommender.jobs[job["JobName"]].items() if name in job}
    assert sent == job
    keys = commands.account.keys()
    assert key in keys


def test_default_job(commands: Commands) -> None:
    """A default job needs nothing but the model and its requests; the table tells what it found and what is next."""
    done = commands("--yes")
    assert done.status == 0, done
    (sent,) = commands.recommender.jobs.values()
    assert (sent["JobType"], set(sent["InputConfig"])) == ("Default", {"ModelName", "ContainerConfig"})
    assert sent["InputConfig"]["ContainerConfig"]["SupportedEndpointType"] == "RealTime"
    assert "IN_PROGRESS: 0 of 1 load tests ended (ml.c5.xlarge IN_PROGRESS)" in done.stderr
    # 0.204 / (648 * 60) * 1e6 = 5.247; 263,596 us are 263.6 ms: 648 / min * 263.6 s would be 2,847 users.
    row = ["ml.c5.xlarge", "0.204", "5.247", "648", "263.6", "ms", "-", "-"]
    assert row in [line.split() for line in done.stdout.splitlines()]
    assert "is COMPLETED after 42 min 00 s" in done.stdout
    assert "is read as microseconds: in milliseconds, 2,847 requests would have been under way" in done.stdout
    assert "Next: instance_type: ml.c5.xlarge in endpoint.yaml" in done.stdout


def test_without_yes_or_credentials(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started without --yes; a dry run without credentials asks nobody."""
    check_refusal(commands("--json"), 2, ("this would start the job", "AWS chooses its load tests", "pass --yes"))
    assert commands.plane.changes() == []
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    planned = commands("--dry-run", "--json")
    assert planned.document["assumed"] is True
    assert len(planned.document["requests"]) == 4
    assert commands.plane.requests == []


def test_repeated_job(commands: Commands) -> None:
    """The same command shows the same job; --again runs it once more, and another content is another job."""
    assert commands("--yes").status == 0
    first = commands.job
    shown = commands("--json")
    assert (shown.document["job"], shown.document["status"], commands.plane.changes()) == (first, "COMPLETED", [])
    assert f"the job {first} exists already: COMPLETED" in shown.stderr
    assert commands("--again", "--yes", "--json").document["job"] == f"{first}-2"
    assert commands.plane.changes() == [CREATE], "archives and model are there"
    commands.write(recommendation_job={"domain": "COMPUTER_VISION"})
    assert commands("--dry-run", "--json").document["job"] not in commands.recommender.jobs


def test_resumed_and_stopped_job(commands: Commands) -> None:
    """A job is waited for by its name, and stopped."""
    commands.recommender.requests = 50
    started = commands("--yes", "--no-wait")
    assert f"{commands.job} is PENDING: 0 of 1 load tests ended" in started.stdout
    assert f"sagemaker recommend endpoint.yaml --job {commands.job}" in started.stdout
    stopped = commands("--job", commands.job, "--stop")
    assert (stopped.status, commands.plane.changes()) == (0, ["stop_inference_recommendations_job"])
    assert f"{commands.job} is STOPPED" in stopped.stdout
    idle = commands("--job", commands.job, "--stop")
    assert "does not run any more" in idle.stderr
    assert commands.plane.changes() == []
    check_refusal(commands("--job", commands.job, "--json"), 8, ("is STOPPED, and recommends nothing",))
    check_refusal(commands("--job", "other", "--json"), 2, ("there is no job other", "list-inference-recommend"))


def test_wait_that_ends_early(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and the end of --wait-minutes leave the job running, and tell how to go on."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    commands.recommender.requests = 50
    assert commands("--yes", "--no-wait").status == 0
    clock = count(step=30)
    with monkeypatch.context() as patch:
        patch.setattr("plansmith.sagemaker.deployment.current.time.monotonic", lambda: next(clock))
        late = commands("--wait-minutes", "1", "--json")
    check_refusal(late, 9, ("is still IN_PROGRESS after 1 minute", f"recommend endpoint.yaml --job {commands.job}"))
    monkeypatch.setattr("plansmith.sagemaker.deployment.current.time.sleep", interrupt)
    interrupted = commands()
    assert interrupted.status == 130
    assert f"--job {commands.job} --stop stops it" in interrupted.stderr


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (
            "INVALID_INPUT: Model returned 4xx or 5xx error code",
            "deploy endpoint.yaml --local; aws logs tail",
        ),
        ("The role cannot be assumed", "policy endpoint.yaml --only recommender-role"),
        ("ResourceLimitExceeded when calling CreateEndpoint", "ask for a larger quota"),
        ("PayloadError when calling InvokeEndpoint", "name others: recommendation_job.payload"),
        ("Something else", "list-inference-recommendations-job-steps --job-name"),
    ],
)
def test_failed_job(commands: Commands, reason: str, remedy: str) -> None:
    """A job that failed says why, and what to type next."""
    commands.recommender.final_status, commands.recommender.reason = "FAILED", reason
    commands.recommender.failures = [configuration("ml.m5.large", failure="no answer")]
    check_refusal(commands("--yes", "--json"), 8, (reason, "ml.m5.large failed: no answer", "--again --yes", remedy))


def test_refusals_of_aws(commands: Commands) -> None:
    """What AWS refuses is one message, and the next run goes on; a job that another run started is waited for."""
    denied = "User: u is not authorized to perform: sagemaker:CreateInferenceRecommendationsJob on resource: arn:x"
    commands.plane.refusals[CREATE].append(("AccessDeniedException", denied))
    refused = commands("--yes", "--json")
    check_refusal(refused, 9, ("not allowed sagemaker:CreateInferenceRecommendationsJob on arn:x", "policy"))
    commands.plane.refusals[CREATE].append(("ResourceLimitExceeded", "The account-level service limit 'Jobs' is 1"))
    check_refusal(commands("--yes", "--json"), 9, ("the quota 'Jobs'",))
    name = commands("--dry-run", "--json").document["job"]
    commands.plane.before[CREATE] = lambda: commands.recommender._create(name, {"JobName": name, **DEFAULT})
    done = commands("--yes", "--json")
    assert (done.status, done.document["status"]) == (0, "COMPLETED")
    assert commands.plane.changes() == [CREATE], "what was created before is there"


DEFAULT = {"JobType": "Default", "RoleArn": ROLE, "InputConfig": {"ModelName": "a"}}


@pytest.mark.parametrize(
    ("job", "texts"),
    [
        ({"instance_types": ["ml.t2.medium"]}, ("is burstable",)),
        ({"instance_types": ["ml.c5.xlagre"]}, ("did you mean ml.c5.xlarge",)),
        ({"variant": "other"}, ("'other' is none of main",)),
        ({"max_tests": 3}, ("'recommendation_job.max_tests': is for advanced jobs",)),
        ({"phases": [PHASE]}, ("2 problems", "name what an advanced job tests", "max_invocations or p95_ms")),
        ({"phases": [{**PHASE, "DurationInSeconds": 60}]}, ("must be 120 or more",)),
        ({**ADVANCED, "duration_seconds": 200}, ("200 is less than the 300 s of its load",)),
        ({"payload": ["absent.json"]}, ("there is no file",)),
    ],
)
def test_bad_job(commands: Commands, job: dict[str, Any], texts: tuple[str, ...]) -> None:
    """What is wrong with a job in the file is told before anything is asked."""
    commands.write(recommendation_job=job)
    check_refusal(commands("--yes", "--json"), 2, texts)
    assert commands.plane.requests == []


def test_bad_options(commands: Commands) -> None:
    """Options that do not go together are refused, and an instance type that cannot serve the model."""
    check_refusal(commands("--job", "a", "--dry-run", "--json"), 2, ("--job names a job that exists",))
    check_refusal(commands("--stop", "--yes", "--json"), 2, ("--stop starts nothing",))
    check_refusal(commands("--stop", "--json"), 2, ("there is no job", "--job NAME --stop"))
    commands.write(variant={"multi_model": True})
    check_refusal(commands("--dry-run", "--json"), 2, ("serves several models", "name a variant"))


def test_payload_files(commands: Commands) -> None:
    """Sample requests come from files where the job names some, and go with the archives."""
    for name in ("a.json", "b.json"):
        (commands.folder / name).write_text(f'{{"{name}": 1}}')
    job = {"payload": ["a.json", "b.json"], "content_type": "application/octet-stream"}
    commands.write(recommendation_job=job)
    assert commands("--yes").status == 0
    (sent,) = commands.recommender.jobs.values()
    payload = sent["InputConfig"]["ContainerConfig"]["PayloadConfig"]
    assert payload["SupportedContentTypes"] == ["application/octet-stream"]
    bucket, key = payload["SamplePayloadUrl"].removeprefix("s3://").split("/", 1)
    content = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["a.json", "b.json"]
    assert commands("--archives", "--yes", command="delete").status == 0
    assert commands.account.keys() == []


def test_deploy_after_a_job(commands: Commands) -> None:
    """A deployment serves the model that the job tested."""
    assert commands("--yes").status == 0
    (sent,) = commands.recommender.jobs.values()
    requests = commands("--dry-run", "--json", command="deploy").document["requests"]
    assert [call["operation"] for call in requests] == ["create_endpoint_config", "create_endpoint", "add_tags"]
    (variant,) = requests[0]["parameters"]["ProductionVariants"]
    assert variant["ModelName"] == sent["InputConfig"]["ModelName"]


def write_report(folder: Path, report: LoadReport) -> None:
    """The report of a load test, as `plansmith loadtest` stores it."""
    (folder / "report.json").write_text(report.model_dump_json())


def test_comparison(commands: Commands) -> None:
    """Own load tests stand beside the recommendations of their instance type, with differences."""
    write_report(commands.folder, example_report())
    done = commands("--yes", "--compare", "ml.c5.xlarge=report.json", "--compare", "report.json")
    assert done.status == 0, done
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    # 648 to 780 * 60 = 46,800 a minute: -99 %; 263.6 to 64 ms: +312 %; own cost 0.204 / (46,800 * 60) * 1e6 = 0.0727.
    same = "ml.c5.xlarge report.json, 32 users 648 46,800 -99 % 263.6 ms 64.0 ms +312 % 5.247"
    assert [line for line in lines if line.startswith("ml.c5.xlarge report")] == [f"{same} 0.073 +7122 %", f"{same} -"]
    mismatch = commands("--compare", "ml.g5.xlarge=report.json")
    assert "! report.json, 32 users is of ml.g5.xlarge, and the job recommends ml.c5.xlarge" in mismatch.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("absent.json", "cannot read absent.json"),
        ("notes.json", "notes.json is no report of a load test: target"),
        ("endpoint.yaml", "endpoint.yaml is no report of a load test"),
        ("ml.c5.xlagre=report.json", "did you mean ml.c5.xlarge"),
        ("idle.json", "no request of this load test was answered"),
    ],
)
def test_bad_report(commands: Commands, text: str, message: str) -> None:
    """What is no report of a load test is refused before anything is started."""
    (commands.folder / "notes.json").write_text('{"a": 1}')
    write_report(commands.folder, example_report().model_copy(update={"stages": ()}))
    (commands.folder / "report.json").rename(commands.folder / "idle.json")
    check_refusal(commands("--yes", "--compare", text, "--json"), 2, (message,))
    assert commands.plane.requests == []


@pytest.mark.slow
def test_recommender_policies(commands: Commands) -> None:
    """Deployer's and recommender's policy allow what jobs request; the role may do what a job does with endpoints."""
    requests: set[str] = set()
    for arguments in (("--yes",), ("--again", "--yes", "--no-wait"), ("--job", "JOB", "--stop")):
        done = commands(*(commands.job if word == "JOB" else word for word in arguments))
        assert done.status == 0, done
        requests |= {request for request in commands.plane.requests if "inference_recommendations" in request}
    policy = commands("--only", "recommender", command="policy").document
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    names = {"sagemaker:" + "".join(part.capitalize() for part in request.split("_")) for request in requests}
    assert allowed == names | {"sagemaker:AddTags"}
    (jobs,) = policy["Statement"]
    assert jobs["Resource"][0].endswith(f":inference-recommendations-job/{commands.account.name}-*")
    role = commands("--only", "recommender-role", command="policy").document
    actions = {action for statement in role["Statement"] for action in statement["Action"]}
    assert {"sagemaker:CreateEndpoint", "sagemaker:InvokeEndpoint", "sagemaker:DeleteEndpoint"} <= actions
