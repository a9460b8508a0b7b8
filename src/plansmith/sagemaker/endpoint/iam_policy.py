"""Least-privilege IAM policies of an endpoint: for its deployer, its operator, and its execution role.

Actions and resources: docs.aws.amazon.com/service-authorization/latest/reference, the pages of SageMaker, Application
Auto Scaling and S3. The execution role's: docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html.
"""

from __future__ import annotations

from typing import Any

from plansmith.sagemaker.endpoint.desired import DesiredState, job_stem, name_pattern, name_stem
from plansmith.sagemaker.endpoint.instances import ecr_image, partition_of
from plansmith.sagemaker.endpoint.spec import EndpointSpec

_VERSION = "2012-10-17"
_SERVICE = "sagemaker.amazonaws.com"
_SCALING_SERVICE = "sagemaker.application-autoscaling.amazonaws.com"
_PULL = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
_NETWORK = [
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
]
_MODEL_ACTIONS = ["AddTags", "CreateModel", "DeleteModel", "DescribeModel", "ListTags"]
_CONFIG_ACTIONS = ["AddTags", "CreateEndpointConfig", "DeleteEndpointConfig", "DescribeEndpointConfig", "ListTags"]
_ENDPOINT_ACTIONS = ["AddTags", "CreateEndpoint", "DeleteEndpoint", "DescribeEndpoint", "ListTags", "UpdateEndpoint"]
_READ_ACTIONS = ["DescribeEndpoint", "DescribeEndpointConfig", "DescribeModel", "ListTags"]
_LOG_ACTIONS = ["CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents"]
_JOB_ACTIONS = [
    "AddTags",
    "CreateInferenceRecommendationsJob",
    "DescribeInferenceRecommendationsJob",
    "ListInferenceRecommendationsJobSteps",
    "StopInferenceRecommendationsJob",
]
_TEST_ACTIONS = [
    "CreateEndpoint",
    "CreateEndpointConfig",
    "DeleteEndpoint",
    "DeleteEndpointConfig",
    "DescribeEndpoint",
    "DescribeEndpointConfig",
    "DescribeModel",
    "InvokeEndpoint",
]
_READ_SCALING = [
    f"application-autoscaling:Describe{name}" for name in ("ScalableTargets", "ScalingActivities", "ScalingPolicies")
]
_OBJECT_ACTIONS = [
    f"s3:{name}"
    for name in ("AbortMultipartUpload", "DeleteObject", "GetObject", "ListMultipartUploadParts", "PutObject")
]

Policy = dict[str, Any]


def deployer_policy(spec: EndpointSpec, desired: DesiredState) -> Policy:
    """Return the policy for `deploy`, `status` and `delete`.

    Names of configurations have a form that no other endpoint's have. Names of models hold the variant's, too, so that
    the policy of an endpoint bert allows the same with the models of bert-prod; `delete` takes only what has the tag of
    its endpoint.
    """
    arns = _Arns(spec)
    statements = [
        _allow("Models", _sagemaker(_MODEL_ACTIONS), [arns.models]),
        _allow("Configurations", _sagemaker(_CONFIG_ACTIONS), [arns.configs]),
        _allow("Endpoint", _sagemaker(_ENDPOINT_ACTIONS), [arns.endpoint]),
        # CreateEndpoint and UpdateEndpoint are authorized for the configuration, too.
        _allow("EndpointOfConfiguration", _sagemaker(["CreateEndpoint", "UpdateEndpoint"]), [arns.configs]),
        _allow("List", _sagemaker(["ListEndpointConfigs", "ListModels"]), ["*"]),
        _allow("ReadRole", ["iam:GetRole"], [spec.role]),
        _pass_role(spec),
        _allow("Archives", _OBJECT_ACTIONS, [arns.archives]),
        _allow("Bucket", ["s3:ListBucket", "s3:ListBucketMultipartUploads"], [arns.bucket]),
    ]
    if spec.smoke_test:
        statements.append(_allow("SmokeTest", _sagemaker(["InvokeEndpoint"]), [arns.endpoint]))
    groups = sorted({variant.model_package_group for variant in spec.all_variants} - {""})
    if groups:
        packages = [spec.arn("model-package", f"{group}/*") for group in groups]
        statements.append(_allow("ReadPackages", _sagemaker(["DescribeModelPackage"]), packages))
        lists = ["ListModelPackageGroups", "ListModelPackages"]
        statements.append(_allow("ListPackages", _sagemaker(lists), ["*"]))
    if spec.bucket_kms_key:
        actions = ["kms:Decrypt", "kms:GenerateDataKey"]
        statements.append(_allow("EncryptArchives", actions, [arns.key(spec.bucket_kms_key)]))
    if spec.kms_key:
        actions = ["kms:CreateGrant", "kms:DescribeKey"]
        statements.append(_allow("EncryptVolumes", actions, [arns.key(spec.kms_key)]))
    # For every endpoint: a variant that scales no more has to be seen and deregistered.
    statements += [_allow("ReadScaling", _READ_SCALING, ["*"]), *_scaling_statements(arns)]
    if desired.scaling:
        statements.append(_scaling_role_statement(arns))
    return {"Version": _VERSION, "Statement": statements}


def recommender_policy(spec: EndpointSpec) -> Policy:
    """Return the policy for `recommend`, in addition to the deployer's: the endpoint's own jobs."""
    return {"Version": _VERSION, "Statement": [_allow("Jobs", _sagemaker(_JOB_ACTIONS), [_Arns(spec).jobs])]}


def recommender_role_policy(spec: EndpointSpec) -> Policy:
    """Return the policy of the execution role for `recommend` jobs, in addition to `execution_policy`.

    A job creates endpoints under names of its own, invokes and deletes them. AWS names AmazonSageMakerFullAccess for it
    and lists no actions; these are the actions of that policy which such work takes.
    """
    arns = _Arns(spec)
    resources = [spec.arn(kind, "*") for kind in ("endpoint", "endpoint-config", "model")]
    logs = f"arn:{arns.partition}:logs:{spec.region}:{spec.account}:log-group:/aws/sagemaker/*"
    statements = [
        _allow("Endpoints", _sagemaker(_TEST_ACTIONS), resources),
        _allow("Jobs", _sagemaker(["DescribeInferenceRecommendationsJob"]), [arns.jobs]),
        _pass_role(spec),
        _allow("Metrics", ["cloudwatch:GetMetricData", "cloudwatch:PutMetricData"], ["*"]),
        _allow("Logs", [f"logs:{name}" for name in _LOG_ACTIONS], [logs]),
    ]
    if spec.kms_key:
        # The API's page on VolumeKmsKeyId of CreateInferenceRecommendationsJob.
        statements.append(_allow("EncryptVolumes", ["kms:CreateGrant", "kms:DescribeKey"], [arns.key(spec.kms_key)]))
    return {"Version": _VERSION, "Statement": statements}


def operator_policy(spec: EndpointSpec) -> Policy:
    """Return the read-only policy for `invoke`, `status`, `metrics` and `verify`."""
    arns = _Arns(spec)
    statements = [
        _allow("Invoke", _sagemaker(["InvokeEndpoint"]), [arns.endpoint]),
        _allow("Read", _sagemaker(_READ_ACTIONS), [arns.endpoint, arns.configs, arns.models]),
        _allow("ReadScaling", _READ_SCALING, ["*"]),
        _allow("ReadMetrics", ["cloudwatch:GetMetricData"], ["*"]),
        _allow("ListArchives", ["s3:ListBucket"], [arns.bucket]),
    ]
    return {"Version": _VERSION, "Statement": statements}


def execution_policy(spec: EndpointSpec, desired: DesiredState) -> Policy:
    """Return the policy of the execution role: reading archives and images, writing logs and metrics."""
    arns = _Arns(spec)
    group = f"arn:{arns.partition}:logs:{spec.region}:{spec.account}:log-group:/aws/sagemaker/Endpoints/{spec.name}"
    logs = [f"logs:{name}" for name in _LOG_ACTIONS]
    images = {ecr_image(call.parameters["PrimaryContainer"]["Image"]) for call in desired.models}
    repositories = [
        f"arn:{arns.partition}:ecr:{region}:{account}:repository/{repository}"
        for account, region, repository in sorted(filter(None, images))
    ]
    statements = [
        _allow("Archives", ["s3:GetObject"], [arns.archives]),
        {
            **_allow("Bucket", ["s3:ListBucket"], [arns.bucket]),
            "Condition": {"StringLike": {"s3:prefix": [f"{spec.archive_prefix}*"]}},
        },
        _allow("Logs", logs, [group, f"{group}:*"]),
        _allow("Metrics", ["cloudwatch:PutMetricData"], ["*"]),
        _allow("Images", _PULL, repositories),
        _allow("Registry", ["ecr:GetAuthorizationToken"], ["*"]),
    ]
    if spec.data_capture:
        place = spec.data_capture.to.removeprefix("s3://")
        statements.append(_allow("Capture", ["s3:PutObject"], [f"arn:{arns.partition}:s3:::{place}/*"]))
        if spec.data_capture.kms_key:
            key = arns.key(spec.data_capture.kms_key)
            statements.append(_allow("EncryptCapture", ["kms:GenerateDataKey"], [key]))
    if spec.bucket_kms_key:
        statements.append(_allow("DecryptArchives", ["kms:Decrypt"], [arns.key(spec.bucket_kms_key)]))
    if spec.vpc:
        statements.append(_allow("Network", _NETWORK, ["*"]))
    return {"Version": _VERSION, "Statement": statements}


def trust_policy() -> Policy:
    """Return the trust policy: the principals that may assume the execution role."""
    statement = {"Effect": "Allow", "Principal": {"Service": _SERVICE}, "Action": "sts:AssumeRole"}
    return {"Version": _VERSION, "Statement": [statement]}


def _scaling_statements(arns: _Arns) -> list[dict[str, Any]]:
    """Return scaling statements: alarms, and initially the caller's rights; `plansmith sagemaker alarms` has its own.

    docs.aws.amazon.com/sagemaker/latest/dg/endpoint-auto-scaling-prerequisites.html
    """
    writes = ["DeleteScalingPolicy", "DeregisterScalableTarget", "PutScalingPolicy", "RegisterScalableTarget"]
    targets = arns.of("application-autoscaling", "scalable-target/*")
    alarms = [arns.of("cloudwatch", f"alarm:{name}-*") for name in ("TargetTracking", f"plansmith-{arns.name}")]
    return [
        _allow("Scale", [f"application-autoscaling:{name}" for name in writes], [targets]),
        _allow("ScaleInstances", _sagemaker(["UpdateEndpointWeightsAndCapacities"]), [arns.endpoint]),
        _allow("Alarms", ["cloudwatch:DeleteAlarms", "cloudwatch:PutMetricAlarm"], alarms),
        _allow("ReadAlarms", ["cloudwatch:DescribeAlarms"], ["*"]),
    ]


def _scaling_role_statement(arns: _Arns) -> dict[str, Any]:
    """Return the statement with which Application Auto Scaling creates its service-linked role if missing."""
    role = (
        f"arn:{arns.partition}:iam::{arns.account}:role/aws-service-role/{_SCALING_SERVICE}"
        "/AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
    )
    return {
        **_allow("ScalingRole", ["iam:CreateServiceLinkedRole"], [role]),
        "Condition": {"StringEquals": {"iam:AWSServiceName": _SCALING_SERVICE}},
    }


class _Arns:
    """ARNs of an endpoint's resources."""

    def __init__(self, spec: EndpointSpec) -> None:
        self.partition, self.region, self.account = partition_of(spec.region), spec.region, spec.account
        self.name = spec.name
        self.bucket = f"arn:{self.partition}:s3:::{spec.bucket_name}"
        self.archives = f"{self.bucket}/{spec.archive_prefix}*"
        self.configs = spec.arn("endpoint-config", name_pattern(spec.name))
        self.endpoint = spec.arn("endpoint", spec.name)
        self.jobs = spec.arn("inference-recommendations-job", f"{job_stem(spec.name)}-*")
        self.models = spec.arn("model", f"{name_stem(spec.name)}-*")

    def of(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of the account in the region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def key(self, key: str) -> str:
        """Return the ARN of a KMS key. An alias is no resource, so any key of the account is allowed for one."""
        if key.startswith("arn:"):
            return key
        return self.of("kms", f"key/{'*' if key.startswith('alias/') else key}")


def _allow(name: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": resources}


def _pass_role(spec: EndpointSpec) -> dict[str, Any]:
    """Return the statement that passes the execution role to SageMaker."""
    return {
        **_allow("PassRole", ["iam:PassRole"], [spec.role]),
        "Condition": {"StringEquals": {"iam:PassedToService": _SERVICE}},
    }


def _sagemaker(operations: list[str]) -> list[str]:
    return [f"sagemaker:{name}" for name in operations]
