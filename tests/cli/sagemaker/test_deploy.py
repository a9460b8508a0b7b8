"""`plansmith sagemaker deploy`, `status` and `delete` as a person types them, with real releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.system.aws.service import Call, require_valid
from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.command import Answer, check_refusal
from ...support.cli.in_process import InProcess
from ...support.sagemaker.account import AwsAccount, account, aws_endpoint, loader
from ...support.sagemaker.endpoints import write_endpoint
from ...support.sagemaker.releases import publish_ensemble, publish_onnx, publish_plans
from ...support.servers.aws_server import aws, s3_server
from ...support.tensorrt.engines import engine

__all__ = ["account", "aws", "aws_endpoint", "loader", "s3_server"]

CPU = {"instance_type": "ml.m5.large"}


class Commands:
    """The command line beside the file of an endpoint, which serves `tiny`."""

    def __init__(self, run: InProcess, account: AwsAccount) -> None:
        self._run = run
        self.folder = run.folder
        self.account = account
        self.plane = account.plane
        self.name = account.name
        repository = ModelRepository(run.folder / "artifacts" / "repository")
        publish_ensemble(repository, run.folder / "made", "whole")
        for model in ("tiny", "other"):
            publish_onnx(repository, run.folder / "made", model)
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the file."""
        variant = {"models": ["tiny"], **CPU, **changes.pop("variant", {})}
        values = {"name": self.name, "bucket": f"s3://{self.account.bucket}/sm", "variant": variant}
        write_endpoint(self.folder, **{**values, **changes})

    def __call__(self, command: str, *arguments: str) -> Answer:
        """Run a command about the endpoint."""
        self.plane.requests.clear()
        return self._run("sagemaker", command, "endpoint.yaml", *arguments)


@pytest.fixture
def commands(run: InProcess, account: AwsAccount) -> Commands:
    return Commands(run, account)


def operations(answer: Answer) -> list[str]:
    """The operations in a document."""
    assert answer.status == 0, answer
    return [request["operation"] for request in answer.document["requests"]]


def test_dry_run(commands: Commands) -> None:
    """A dry run writes nothing and prints the exact requests, which the deployment then sends."""
    printed = commands("deploy", "--dry-run")
    assert printed.status == 0, printed
    assert commands.plane.changes() == []
    assert not (commands.folder / "artifacts" / "sagemaker").exists()
    steps = yaml.safe_load(printed.stdout)
    assert [step.get("operation", "wait") for step in steps] == [
        *("upload_file", "create_model", "create_endpoint_config", "create_endpoint", "wait", "add_tags")
    ]
    upload, *requests = [step for step in steps if "operation" in step]
    for request in requests:
        require_valid(Call.model_validate(request), enums=True)
    container = requests[0]["parameters"]["PrimaryContainer"]
    assert container["Image"].endswith("/sagemaker-tritonserver:26.05-py3-cpu")
    assert container["Environment"]["SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"] == "tiny"
    done = commands("deploy")
    assert done.status == 0, done
    assert commands.plane.changes() == [request["operation"] for request in requests]
    assert Path(upload["parameters"]["Filename"]).is_file()
    assert commands.account.keys() == [upload["parameters"]["Key"]]
    assert f"{commands.name} is in service with" in done.stdout
    assert "create endpoint config" in done.stderr
    assert operations(commands("deploy", "--json")) == []
    assert "# Nothing to do" in commands("deploy", "--dry-run").stdout


def test_dry_run_without_credentials(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run without credentials says what it assumed; a deployment is refused."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert commands("deploy", "--dry-run").stdout.startswith("# There are no credentials: AWS was not asked")
    assert commands.plane.requests == []
    assert commands("deploy", "--dry-run", "--json").document["assumed"] is True
    check_refusal(commands("deploy", "--json"), 9, ("there are no usable AWS credentials here",))


@pytest.mark.slow
def test_status_and_delete(commands: Commands) -> None:
    """The status shows what an endpoint serves, and its deletion needs --yes."""
    absent = commands("status")
    assert f"there is no endpoint {commands.name} in us-east-1" in absent.stdout
    commands("deploy")
    shown = commands("status").stdout
    assert f"{commands.name} is InService with {commands.name}-" in shown
    assert "tiny@1" in shown
    assert "sagemaker-tritonserver:26.05-py3-cpu" in shown
    assert commands("status", "--json").document["status"]["variants"][0]["instances"] == 1
    check_refusal(commands("delete", "--json"), 2, ("3 things of", "pass --yes"))
    listed = commands("delete", "--dry-run", "--archives")
    assert commands.plane.changes() == []
    assert f"delete endpoint {commands.name}\n" in listed.stdout
    assert "4 things would be deleted" in listed.stdout
    done = commands("delete", "--archives", "--yes", "--json")
    assert operations(done) == ["delete_endpoint", "delete_endpoint_config", "delete_model"]
    assert commands.account.keys() == []
    assert commands("status", "--json").document["status"] is None
    assert operations(commands("delete", "--yes", "--json")) == []


@pytest.mark.slow
def test_many_models(commands: Commands) -> None:
    """Each model and copy of a multi-model variant is an archive of its own, and another one leaves the endpoint."""
    commands.write(variant={"multi_model": True, "models": ["tiny", "other"], "copies": 3})
    done = commands("deploy", "--json")
    assert operations(done) == [
        *["upload_file"] * 6,
        *("create_model", "create_endpoint_config", "create_endpoint", "add_tags"),
    ]
    assert len(set(done.document["target_models"]["main"])) == 6
    container = done.document["requests"][6]["parameters"]["PrimaryContainer"]
    assert container["Mode"] == "MultiModel"
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" not in container["Environment"]
    commands.write(variant={"multi_model": True, "models": ["tiny", "other", "whole"], "copies": 3})
    assert set(operations(commands("deploy", "--json"))) == {"upload_file", "add_tags"}
    assert "other@1, tiny@1, whole@1" in commands("status").stdout


def test_model_without_requests(commands: Commands) -> None:
    """A model that no request reaches is warned of."""
    commands.write(variant={"models": ["tiny", "other"], "environment": {"default_model": "tiny"}})
    printed = commands("deploy", "--dry-run")
    assert printed.status == 0, printed
    assert "main: ! the endpoint answers by tiny alone: no request reaches other@1" in printed.stderr


def test_plans(commands: Commands) -> None:
    """A plan is refused for instances that do not run it, and warned of for an old driver."""
    repository = ModelRepository(commands.folder / "artifacts" / "gpu")
    publish_plans(repository, commands.folder, "plans", engine(), version="10.16.0.72", target="sagemaker-26.05")
    commands.write(variant={"models": ["plans"], "instance_type": "ml.m5.large"}, repository="artifacts/gpu")
    check_refusal(commands("deploy", "--json"), 6, ("it is for GPUs, and ml.m5.large has none",))
    assert commands.plane.requests == []
    system_image = "al2-ami-sagemaker-inference-gpu-3-1"
    instance_type = {"8.6": "ml.g5.xlarge", "8.9": "ml.g6.xlarge"}[next(iter(engine().plans))]
    variant = {"models": ["plans"], "instance_type": instance_type, "inference_ami": system_image}
    commands.write(variant=variant, repository="artifacts/gpu")
    assert "has driver 550" in commands("deploy", "--dry-run").stderr


@pytest.mark.parametrize(
    ("changes", "status", "texts"),
    [
        ({"variant": {"models": ["absent"]}}, 7, ("absent",)),
        ({"variant": {"models": ["tiny", "other"]}}, 2, ("tiny, other share a container",)),
        ({"regoin": "x"}, 2, ("did you mean region?", "endpoint.yaml:")),
        ({"bucket": "s3://there-is-no-such-bucket-here"}, 7, ("there is no bucket",)),
    ],
    ids=["no release", "two without a default", "an unknown key", "no bucket"],
)
def test_bad_input(commands: Commands, changes: dict[str, Any], status: int, texts: tuple[str, ...]) -> None:
    """Bad input is one message before anything is created."""
    commands.write(**changes)
    check_refusal(commands("deploy", "--json"), status, texts)
    assert commands.plane.changes() == []


def test_failure(commands: Commands) -> None:
    """A deployment that fails says why, and what became of the endpoint."""
    commands.plane.failures.append("The container did not start")
    refused = commands("deploy", "--json")
    check_refusal(refused, 8, ("The container did not start", "it was the first deployment", "aws logs tail"))


_S3_ACTIONS = {"head_object": "GetObject", "head_bucket": "ListBucket", "list_objects_v2": "ListBucket"}
_UNTESTED = {
    *("iam:CreateServiceLinkedRole", "iam:PassRole", "sagemaker:UpdateEndpointWeightsAndCapacities"),
    *("cloudwatch:DeleteAlarms", "cloudwatch:DescribeAlarms", "cloudwatch:PutMetricAlarm"),
    # of archives that are sent in parts, and of a variant's metric that the file does not name any more
    *("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:ListBucketMultipartUploads"),
    "application-autoscaling:DeleteScalingPolicy",
}


@pytest.mark.slow
def test_deployer_policy(commands: Commands) -> None:
    """The deployer's policy allows what a life of an endpoint requests, and no more."""
    (commands.folder / "request.json").write_text("{}")
    smoke = {"smoke_test": {"body": "request.json"}}
    scaling = {"auto_scaling": {"max_instances": 3, "invocations_per_instance": 100}}
    requests: set[str] = set()

    def run(command: str, *arguments: str, status: int = 0) -> None:
        answer = commands(command, *arguments)
        assert answer.status == status, answer
        requests.update(commands.plane.requests)

    commands.write(variant=scaling, **smoke)
    policy = commands("policy", "--only", "deployer").document
    run("deploy")
    commands.plane.failures.append("no")
    commands.write(variant={"models": ["other"], "instance_type": "ml.m5.xlarge", **scaling}, tags={"a": "b"}, **smoke)
    run("deploy", status=8)
    run("deploy")
    run("status")
    run("delete", "--yes", "--archives")
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    names = {
        _S3_ACTIONS.get(request, "".join(part.capitalize() for part in request.split("_"))) for request in requests
    } - {"GetCallerIdentity"}  # which needs no permission
    assert names == {action.partition(":")[2] for action in actions - _UNTESTED}
