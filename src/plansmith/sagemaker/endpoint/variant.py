"""Specification of a production or shadow variant: models, instances, container, scaling."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from plansmith.config.targets import Version
from plansmith.records.fields import (
    ByteCount,
    Count,
    NonNegativeCount,
    Part,
    PositiveCount,
    Share,
    Switch,
    matching,
)
from plansmith.records.model import Record
from plansmith.sagemaker.endpoint.instances import find_instance, nearest_instances, system_images
from plansmith.sagemaker.start_script import VARIABLE_PREFIX

# Patterns and limits: EndpointName, VariantName and ContainerImage in
# docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateEndpointConfig.html.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[1-9][0-9]*)?")
_ACCOUNT = re.compile(r"\d{12}")
_IMAGE = re.compile(r"\S{1,255}")
_ARGUMENT = re.compile(r"--[^\s'\"]+")
_ARGUMENT_FORM = "must be --NAME=VALUE without spaces and quotes, which the start script does not pass on"
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED_PREFIX = "SAGEMAKER_"

VARIABLE_FIELDS = {
    "DEFAULT_MODEL_NAME": "default_model",
    "THREAD_COUNT": "thread_count",
    "BUFFER_MANAGER_THREAD_COUNT": "buffer_manager_thread_count",
    "MODEL_LOAD_GPU_LIMIT": "model_load_gpu_limit",
    "SHM_DEFAULT_BYTE_SIZE": "shm_default_bytes",
    "SHM_GROWTH_BYTE_SIZE": "shm_growth_bytes",
    "LOG_VERBOSE": "log_verbose",
    "LOG_INFO": "log_info",
    "LOG_WARNING": "log_warning",
    "LOG_ERROR": "log_error",
    "ALLOW_METRICS": "allow_metrics",
    "METRICS_PORT": "metrics_port",
    "ALLOW_GRPC": "allow_grpc",
    "GRPC_PORT": "grpc_port",
    "INFERENCE_TYPE": "inference_type",
    # The script passes on the first one only if it is set, and then with the value of the second.
    "PING_MODE": "ping_mode",
    "OVERRIDE_PING_MODE": "ping_mode",
    # Passed on to --model-namespacing as it is, whatever the name promises.
    "DISABLE_MODEL_NAMESPACING": "model_namespacing",
    "ADDITIONAL_ARGS": "additional_args",
}
"""The field of `Environment` for each variable that the start script reads, without SAGEMAKER_TRITON_."""

_NAME_FORM = "a name has at most 63 letters, digits and -, and begins and ends with a letter or digit"
Name = Annotated[str, matching(_NAME, _NAME_FORM)]
ModelName = Annotated[str, matching(_MODEL, "is no MODEL or MODEL@VERSION, such as bert or bert@3")]
Account = Annotated[str, matching(_ACCOUNT, "an account has 12 digits; write them in quotes", or_empty=True)]
Port = Annotated[Count, Field(ge=1, le=65535)]
Timeout = Annotated[Count, Field(ge=60, le=3600)]


def _check_instance(value: str) -> str:
    if find_instance(value) is None:
        near = nearest_instances(value)
        raise ValueError("is no known instance type" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    return value


def _check_system_image(value: str) -> str:
    if value and value not in system_images():
        raise ValueError(f"is no system image with an NVIDIA driver: {', '.join(system_images())}")
    return value


def _check_variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("is no name of an environment variable")
    field = VARIABLE_FIELDS.get(value.removeprefix(VARIABLE_PREFIX)) if value.startswith(VARIABLE_PREFIX) else None
    if field:
        raise ValueError(f"{value} has a key of its own: environment.{field}")
    if value.startswith(_RESERVED_PREFIX) and not value.startswith(VARIABLE_PREFIX):
        raise ValueError(f"variables that begin with {_RESERVED_PREFIX} are reserved for SageMaker")
    return value


class ImageOverride(Record):
    """Image override of the container; omitted fields follow from the releases' target."""

    version: Version | None = Field(default=None, description="Version of SageMaker's Triton container: '26.05'.")
    account: Account = Field(default="", description="Account whose registry has a copy of the image.")
    uri: Annotated[str, matching(_IMAGE, "an image has no spaces and at most 255 characters", or_empty=True)] = Field(
        default="", description="The image in full, in Amazon ECR of the region; assumed to have what the target has."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.uri and (self.version or self.account):
            raise ValueError("uri names the image in full: leave out version and account")
        return self


class Environment(Record):
    """Environment settings of Triton and the container's start script (docker/sagemaker/serve of Triton's server)."""

    default_model: str = Field(default="", description="The model that answers, where a variant has several.")
    thread_count: PositiveCount | None = Field(default=None, description="Threads of SageMaker's front end.")
    buffer_manager_thread_count: NonNegativeCount | None = Field(
        default=None, description="Threads that gather and scatter the tensors of a batch."
    )
    model_load_gpu_limit: Part | None = Field(
        default=None,
        description="Fraction of GPU memory beyond which no model is loaded; for multi-model variants.",
    )
    shm_default_bytes: ByteCount | None = Field(
        default=None, description="Shared memory of each model of the Python backend at its start; 16M by default."
    )
    shm_growth_bytes: ByteCount | None = Field(default=None, description="Step by which it grows; 1M by default.")
    log_verbose: Switch = Field(default=False, description="Log every request, as the start script does by default.")
    log_info: Switch | None = Field(default=None, description="Log informational messages.")
    log_warning: Switch | None = Field(default=None, description="Log warnings.")
    log_error: Switch | None = Field(default=None, description="Log errors.")
    allow_metrics: Switch | None = Field(
        default=None, description="Serve Triton's Prometheus metrics inside the container."
    )
    metrics_port: Port | None = Field(
        default=None, description="Port of the metrics, in SageMaker's range of safe ports."
    )
    allow_grpc: Switch | None = Field(default=None, description="Serve gRPC inside the container.")
    grpc_port: Port | None = Field(default=None, description="Port of gRPC, in the same range.")
    model_namespacing: Switch | None = Field(
        default=None, description="Let models of two archives have the same name, as the start script does by default."
    )
    inference_type: Literal["infer", "generate", "generate_stream"] | None = Field(
        default=None, description="Protocol of the requests; for single-model variants."
    )
    ping_mode: Literal["ready", "live"] | None = Field(
        default=None, description="What /ping asks for: all models ready, or Triton up."
    )
    additional_args: tuple[Annotated[str, matching(_ARGUMENT, _ARGUMENT_FORM)], ...] = Field(
        default=(),
        description="Further arguments of tritonserver; those that the releases need are added.",
    )
    variables: dict[Annotated[str, AfterValidator(_check_variable)], str] = Field(
        default_factory=dict, description="Further environment variables; no secrets, as describe-model shows them."
    )


class AutoScaling(Record):
    """Auto scaling of the number of instances by load; allows several metrics."""

    min_instances: PositiveCount = Field(default=1, description="Never fewer.")
    max_instances: PositiveCount = Field(description="Never more.")
    invocations_per_instance: Share | None = Field(
        default=None, description="Requests per instance and minute to aim for, as a mean."
    )
    gpu_utilization: Annotated[Share, Field(le=100)] | None = Field(
        default=None, description="Utilization of the GPUs to aim for, in percent, as a mean over them."
    )
    cpu_utilization: Annotated[Share, Field(le=100)] | None = Field(
        default=None, description="Utilization of the CPU cores to aim for, likewise."
    )
    scale_out_seconds: NonNegativeCount = Field(default=300, description="Seconds between two additions.")
    scale_in_seconds: NonNegativeCount = Field(default=300, description="Seconds between two removals.")
    scale_in: Switch = Field(default=True, description="Whether instances are removed, too.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_instances < self.min_instances:
            raise ValueError("max_instances is less than min_instances")
        if not (self.invocations_per_instance or self.gpu_utilization or self.cpu_utilization):
            raise ValueError("names no metric: give invocations_per_instance, gpu_utilization or cpu_utilization")
        return self


class VariantSpec(Record):
    """Variant spec: instances that serve one archive or, as a multi-model variant, many."""

    name: Name = Field(default="main", description="Its name in the endpoint.")
    models: tuple[ModelName, ...] = Field(min_length=1, description="MODEL or MODEL@VERSION of the repository.")
    model_package_group: Annotated[str, matching(_NAME, _NAME_FORM, or_empty=True)] = Field(
        default="",
        description="Serve the newest approved version of this group of the Model Registry; models names the model.",
    )
    multi_model: Switch = Field(
        default=False, description="Serve each model as an archive of its own, loaded at its first request."
    )
    copies: Annotated[Count, Field(ge=1, le=1000)] = Field(
        default=1, description="Renamed copies of each model, to size a multi-model endpoint."
    )
    instance_type: Annotated[str, AfterValidator(_check_instance)] = Field(description="Such as ml.g5.xlarge.")
    instance_count: PositiveCount = Field(default=1, description="Instances at the start.")
    weight: Share = Field(
        default=1.0, description="Its share of the requests, relative to the other variants' weights."
    )
    image: ImageOverride = ImageOverride()
    environment: Environment = Environment()
    auto_scaling: AutoScaling | None = Field(default=None, description="Let the number of instances follow the load.")
    volume_gb: Annotated[Count, Field(ge=1, le=512)] | None = Field(
        default=None, description="Size of an instance's volume, where it has no disks of its own."
    )
    download_seconds: Timeout | None = Field(
        default=None, description="Time limit for an instance to download and unpack the archive."
    )
    startup_seconds: Timeout | None = Field(default=None, description="Time limit for the container to answer /ping.")
    inference_ami: Annotated[str, AfterValidator(_check_system_image)] = Field(
        default="",
        description="System image of the instances, which brings the GPU's driver, such as"
        " al2023-ami-sagemaker-inference-gpu-4-1 with 580; SageMaker's default when empty.",
    )
