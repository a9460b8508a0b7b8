"""From the desired and the current state to the exact requests, each of which AWS describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import RepositoryError
from plansmith.sagemaker.deployment.current import CurrentState, EndpointState, ResourceState, ScalingState
from plansmith.sagemaker.deployment.plan import DeploymentPlan, make_plan
from plansmith.sagemaker.endpoint.desired import DesiredState, parse_releases
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.system.aws.service import require_valid

from ...support.sagemaker.endpoints import archive, desired, endpoint_spec

ARN = "arn:aws:sagemaker:us-east-1:123456789012:endpoint/bert"
OWNED = {"plansmith:endpoint": "bert"}
SCALING = {"max_instances": 4, "invocations_per_instance": 600, "gpu_utilization": 70}
POLICY = "TargetTrackingScalingPolicyConfiguration"


def operations(plan: DeploymentPlan) -> list[str]:
    """The operations of a plan, whose requests all are valid."""
    for call in (*plan.calls, *plan.restoring):
        require_valid(call, enums=True)
    return [*(upload.request.operation for upload in plan.uploads), *(call.operation for call in plan.calls)]


def in_service(state: DesiredState, **changes: Any) -> CurrentState:
    """The current state where all that is desired is there."""
    models = {
        call.parameters["ModelName"]: ResourceState(
            arn=f"{ARN}-model", tags={tag["Key"]: tag["Value"] for tag in call.parameters["Tags"]}
        )
        for call in state.models
    }
    values: dict[str, Any] = {
        "endpoint": endpoint(
            state.config_name, tags={**state.tags, "plansmith:verified": state.config_name}
        ).model_copy(update={"instances": state.instance_counts}),
        "models": models,
        "configs": {state.config_name: ResourceState(arn=f"{ARN}-config", tags=OWNED)},
        "uploaded": tuple(upload.key for upload in state.uploads),
        "instance_types": state.instance_types,
    }
    return CurrentState(**{**values, **changes})


def endpoint(
    config: str, status: str = "InService", tags: dict[str, str] | None = None, **values: Any
) -> EndpointState:
    """An endpoint."""
    return EndpointState(arn=ARN, status=status, config=config, tags=OWNED if tags is None else tags, **values)


def scaling_of(state: DesiredState, name: str = "main") -> dict[str, ScalingState]:
    """How a variant scales where that is as desired."""
    register, *policies = state.scaling[name]
    limits = {key: register.parameters[key] for key in ("MinCapacity", "MaxCapacity")}
    values = {call.parameters["PolicyName"]: call.parameters[POLICY] for call in policies}
    return {name: ScalingState(limits=limits, policies=values)}


def test_first_deployment(tmp_path: Path) -> None:
    """A first deployment creates everything, in its order."""
    spec = endpoint_spec(tmp_path, variant={"auto_scaling": SCALING}, tags={"team": "search"})
    served = archive(tmp_path, version_compatible=True)
    plan = make_plan(desired(spec, served), CurrentState())
    assert operations(plan) == [
        *("upload_file", "create_model", "create_endpoint_config", "create_endpoint"),
        *("register_scalable_target", "put_scaling_policy", "put_scaling_policy", "add_tags"),
    ]
    model, config, created, _, invocations, gpu, verified = plan.calls
    key = f"endpoints/bert/archives/{Path(served.file).name}"
    assert plan.uploads[0].request.parameters == {"Filename": served.file, "Bucket": "models", "Key": key}
    assert model.parameters["PrimaryContainer"] == {
        "Image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:26.05-py3",
        "Mode": "SingleModel",
        "ModelDataUrl": f"s3://models/{key}",
        "Environment": {
            "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--backend-config=tensorrt,version-compatible=true",
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert",
            "SAGEMAKER_TRITON_LOG_VERBOSE": "false",
        },
    }
    assert {"Key": "plansmith:releases", "Value": "bert@3"} in model.parameters["Tags"]
    assert config.parameters["ProductionVariants"] == [
        {
            "VariantName": "main",
            "ModelName": model.parameters["ModelName"],
            "InstanceType": "ml.g5.xlarge",
            "InitialInstanceCount": 1,
            "InitialVariantWeight": 1,
        }
    ]
    assert created.parameters["EndpointConfigName"] == config.parameters["EndpointConfigName"] == plan.config
    assert created.parameters["Tags"] == [
        {"Key": "plansmith:endpoint", "Value": "bert"},
        {"Key": "team", "Value": "search"},
    ]
    assert invocations.parameters[POLICY]["TargetValue"] == 600
    metric = gpu.parameters[POLICY]["CustomizedMetricSpecification"]
    assert (metric["MetricName"], metric["Namespace"]) == ("GPUUtilization", "/aws/sagemaker/Endpoints")
    assert verified.parameters == {"ResourceArn": ARN, "Tags": [{"Key": "plansmith:verified", "Value": plan.config}]}


@pytest.mark.parametrize(
    ("instance_type", "metric", "target"),
    [("ml.g5.xlarge", "gpu", 70), ("ml.g5.12xlarge", "gpu", 280), ("ml.g5.xlarge", "cpu", 280)],
)
def test_utilization_target(tmp_path: Path, instance_type: str, metric: str, target: float) -> None:
    """The utilization to aim for is the sum over an instance's GPUs or CPU cores, as CloudWatch has it."""
    scaling = {"max_instances": 4, f"{metric}_utilization": 70}
    spec = endpoint_spec(tmp_path, variant={"auto_scaling": scaling, "instance_type": instance_type})
    policy = desired(spec, archive(tmp_path)).scaling["main"][-1]
    assert policy.parameters["PolicyName"] == f"plansmith-{metric}"
    assert policy.parameters[POLICY]["TargetValue"] == target


def test_nothing_to_do(tmp_path: Path) -> None:
    """Nothing is requested where all is as desired."""
    state = desired(endpoint_spec(tmp_path, variant={"auto_scaling": SCALING}), archive(tmp_path))
    assert make_plan(state, in_service(state, scaling=scaling_of(state))).is_empty


def test_names(tmp_path: Path) -> None:
    """Names follow from the content alone, and leave room for its digest."""
    served = archive(tmp_path)
    state, tagged = (desired(endpoint_spec(tmp_path, tags=tags), served) for tags in ({}, {"a": "b"}))
    assert state.config_name == tagged.config_name
    second = desired(endpoint_spec(tmp_path), archive(tmp_path, content="other"))
    assert second.config_name != state.config_name
    assert second.models[0].parameters["ModelName"] != state.models[0].parameters["ModelName"]
    larger = desired(endpoint_spec(tmp_path, variant={"instance_count": 2}), served)
    assert larger.config_name != state.config_name
    assert larger.models[0].parameters["ModelName"] == state.models[0].parameters["ModelName"]
    long = desired(endpoint_spec(tmp_path, name="a" * 62 + "b", variant={"name": "c" * 63}), served)
    assert {len(long.config_name), len(long.models[0].parameters["ModelName"])} == {63}


def test_new_release(tmp_path: Path) -> None:
    """A new release updates the endpoint, which can roll back; an older one that is still there is switched to."""
    spec = endpoint_spec(tmp_path)
    before, after = desired(spec, archive(tmp_path)), desired(spec, archive(tmp_path, content="new"))
    plan = make_plan(after, in_service(before, models={}, configs={}, uploaded=()))
    assert operations(plan) == ["upload_file", "create_model", "create_endpoint_config", "update_endpoint", "add_tags"]
    assert plan.previous == before.config_name
    assert plan.waits
    back = make_plan(before, in_service(before, endpoint=in_service(after).endpoint))
    assert operations(back) == ["update_endpoint", "add_tags"]


def test_another_model_of_many(tmp_path: Path) -> None:
    """Another model of a multi-model variant is uploaded, and the model's tag lists it; the endpoint stays."""
    spec = endpoint_spec(tmp_path, variant={"multi_model": True, "models": ["a", "b"]})
    archives = archive(tmp_path, "a"), archive(tmp_path, "b")
    state = desired(spec, *archives)
    container = state.models[0].parameters["PrimaryContainer"]
    assert container["ModelDataUrl"] == "s3://models/endpoints/bert/main/"
    assert container["Mode"] == "MultiModel"
    assert state.target_models == {"main": tuple(Path(item.file).name for item in archives)}
    plan = make_plan(state, in_service(desired(spec, archives[0])))
    assert operations(plan) == ["upload_file", "add_tags"]
    assert plan.tagging[0].parameters["Tags"] == [{"Key": "plansmith:releases", "Value": "a@3 b@3"}]
    assert not plan.waits


def test_options(tmp_path: Path) -> None:
    """Shadow variants, data capture, network, keys and time limits are part of the requests."""
    spec = endpoint_spec(
        tmp_path,
        variant={"instance_type": "ml.m5.large", "volume_gb": 40, "download_seconds": 600, "startup_seconds": 600},
        shadow_variants=[{"name": "next", "models": ["bert@4"], "instance_type": "ml.m5.large", "weight": 0.5}],
        data_capture={"to": "s3://captured/bert", "percent": 20, "what": ["output"], "kms_key": "alias/capture"},
        vpc={"subnets": ["subnet-0a"], "security_groups": ["sg-0a"]},
        network_isolation=True,
        kms_key="alias/volumes",
        bucket_kms_key="alias/archives",
    )
    plan = make_plan(desired(spec, archive(tmp_path)), CurrentState())
    assert operations(plan).count("create_model") == 2
    config = next(call for call in plan.calls if call.operation == "create_endpoint_config").parameters
    assert [variant["VariantName"] for variant in config["ShadowProductionVariants"]] == ["next"]
    assert config["ProductionVariants"][0]["VolumeSizeInGB"] == 40
    assert config["DataCaptureConfig"]["CaptureOptions"] == [{"CaptureMode": "Output"}]
    assert config["KmsKeyId"] == "alias/volumes"
    model = next(call for call in plan.calls if call.operation == "create_model").parameters
    assert model["VpcConfig"] == {"SecurityGroupIds": ["sg-0a"], "Subnets": ["subnet-0a"]}
    assert model["EnableNetworkIsolation"] is True
    assert plan.uploads[0].request.parameters["ExtraArgs"]["SSEKMSKeyId"] == "alias/archives"


def test_scaled_variant_instance_type(tmp_path: Path) -> None:
    """A variant gets another instance type while it does not scale, and scales again after a rollback."""
    before = desired(endpoint_spec(tmp_path, variant={"auto_scaling": SCALING}), archive(tmp_path))
    larger = {"auto_scaling": SCALING, "instance_type": "ml.g5.2xlarge"}
    after = desired(endpoint_spec(tmp_path, variant=larger), archive(tmp_path))
    plan = make_plan(after, in_service(before, scaling=scaling_of(before)))
    assert operations(plan) == [
        *("create_endpoint_config", "deregister_scalable_target", "update_endpoint"),
        *("register_scalable_target", "put_scaling_policy", "put_scaling_policy", "add_tags"),
    ]
    assert [call.operation for call in plan.restoring] == [
        *("register_scalable_target", "put_scaling_policy", "put_scaling_policy")
    ]


def test_instances_of_scaled_variants(tmp_path: Path) -> None:
    """Scaled variants keep their instances while the others' number stays, and start again where it changes."""

    def spec(**fixed: Any) -> EndpointSpec:
        base = {"models": ["bert"], "instance_type": "ml.g5.xlarge"}
        rows = [{**base, "auto_scaling": SCALING}, {**base, "name": "fixed", "instance_count": 2, **fixed}]
        return endpoint_spec(tmp_path, variants=rows)

    before, after = desired(spec(), archive(tmp_path)), desired(spec(), archive(tmp_path, content="new"))
    current = in_service(before, scaling=scaling_of(before))
    assert current.endpoint is not None
    scaled_out = current.endpoint.model_copy(update={"instances": {"main": 4, "fixed": 2}})
    plan = make_plan(after, current.model_copy(update={"endpoint": scaled_out, "uploaded": ()}))
    (update,) = [call for call in plan.calls if call.operation == "update_endpoint"]
    assert update.parameters["RetainAllVariantProperties"] is True
    assert plan.resets == ()
    assert plan.retention["RetainAllVariantProperties"] is True, "a rollback keeps them, too"
    more = desired(spec(instance_count=3), archive(tmp_path))
    plan = make_plan(more, current.model_copy(update={"endpoint": scaled_out}))
    (update,) = [call for call in plan.calls if call.operation == "update_endpoint"]
    assert "RetainAllVariantProperties" not in update.parameters, "or the third instance would not come"
    assert plan.resets == ("main",)


def test_changes_of_scaling(tmp_path: Path) -> None:
    """Only what changed of scaling is requested, and the endpoint stays."""
    before = desired(endpoint_spec(tmp_path, variant={"auto_scaling": SCALING}), archive(tmp_path))
    changed = {"max_instances": 6, "invocations_per_instance": 600}
    after = desired(endpoint_spec(tmp_path, variant={"auto_scaling": changed}), archive(tmp_path))
    plan = make_plan(after, in_service(before, scaling=scaling_of(before)))
    assert operations(plan) == ["delete_scaling_policy", "register_scalable_target"]
    assert plan.calls[0].parameters["PolicyName"] == "plansmith-gpu"
    assert not plan.waits
    without = desired(endpoint_spec(tmp_path), archive(tmp_path))
    assert operations(make_plan(without, in_service(before, scaling=scaling_of(before)))) == [
        "deregister_scalable_target"
    ]


def test_changed_tag(tmp_path: Path) -> None:
    """A changed tag is set on the endpoint, and tags of others stay."""
    state = desired(endpoint_spec(tmp_path, tags={"team": "search"}), archive(tmp_path))
    tags = {**OWNED, "plansmith:verified": state.config_name, "cost-centre": "7"}
    plan = make_plan(state, in_service(state, endpoint=endpoint(state.config_name, tags=tags)))
    assert operations(plan) == ["add_tags"]
    assert plan.calls[0].parameters["Tags"] == [{"Key": "team", "Value": "search"}]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("endpoint", "endpoint bert exists already and was not created by plansmith"),
        ("models", "model bert-main-"),
        ("configs", "endpoint configuration bert-"),
    ],
)
def test_name_of_somebody_else(tmp_path: Path, field: str, message: str) -> None:
    """A name that something else has is refused."""
    state = desired(endpoint_spec(tmp_path), archive(tmp_path))
    current = in_service(state)
    values: dict[str, Any] = {
        "endpoint": endpoint(state.config_name, tags={}),
        "models": {name: ResourceState(arn=ARN) for name in current.models},
        "configs": {name: ResourceState(arn=ARN) for name in current.configs},
    }
    with pytest.raises(RepositoryError) as refused:
        make_plan(state, in_service(state, **{field: values[field]}))
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("status", "transient", "remedy"),
    [
        ("Updating", True, "wait until that is done"),
        ("Creating", True, "wait until that is done"),
        ("Deleting", True, "wait until that is done"),
        ("Failed", False, "plansmith sagemaker delete SPEC.yaml --yes"),
        ("UpdateRollbackFailed", False, "plansmith sagemaker delete SPEC.yaml --yes"),
    ],
)
def test_wrong_state(tmp_path: Path, status: str, transient: bool, remedy: str) -> None:
    """An endpoint in the wrong state is left alone."""
    state = desired(endpoint_spec(tmp_path), archive(tmp_path))
    current = in_service(state, endpoint=endpoint("bert-other", status, failure="no image"))
    with pytest.raises(RepositoryError) as refused:
        make_plan(state, current)
    assert f"the endpoint bert is {status}" in refused.value.message
    assert "(no image)" in refused.value.message
    assert remedy in refused.value.remedy
    assert refused.value.transient is transient


def test_interrupted_deployment(tmp_path: Path) -> None:
    """An endpoint that changes to the desired state is waited for, and an unverified one can roll back."""
    state = desired(endpoint_spec(tmp_path), archive(tmp_path))
    changing = endpoint("bert-before", "Updating", pending_config=state.config_name)
    plan = make_plan(state, in_service(state, endpoint=changing))
    assert operations(plan) == ["add_tags"]
    assert plan.waits
    assert plan.previous == "bert-before"
    unverified = endpoint(state.config_name, tags={**OWNED, "plansmith:verified": "bert-before"})
    plan = make_plan(state, in_service(state, endpoint=unverified))
    assert operations(plan) == ["add_tags"]
    assert plan.previous == "bert-before"
    assert not make_plan(state, in_service(state)).previous, "a verified one is left alone"


def test_releases_tag(tmp_path: Path) -> None:
    """A tag lists as many releases as it has room for, and how many more there are."""
    spec = endpoint_spec(tmp_path, variant={"multi_model": True, "models": ["bert"]})
    names = tuple(f"{'m' * 40}{number:02}@1" for number in range(9))
    model = desired(spec, archive(tmp_path, releases=names)).models[0]
    (value,) = [tag["Value"] for tag in model.parameters["Tags"] if tag["Key"] == "plansmith:releases"]
    assert value == f"{' '.join(names[:5])} and 4 more"
    assert len(value) <= 256
    assert parse_releases(value) == (names[:5], 4)
    assert parse_releases(" ".join(names[:2])) == (names[:2], 0)
