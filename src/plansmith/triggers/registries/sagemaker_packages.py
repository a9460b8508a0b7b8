"""Packages of the SageMaker Model Registry, as SageMaker itself has them."""

from __future__ import annotations

from plansmith.config.service.triggers import SageMakerRegistry
from plansmith.system.aws.service import AwsService


def package_service(config: SageMakerRegistry, arn: str) -> AwsService:
    """SageMaker in the region of a package.

    Args:
        config: of the registry.
        arn: of the package.
    """
    return AwsService(
        "sagemaker",
        f"the package {arn}",
        region=arn.split(":")[3],
        endpoint_url=config.sagemaker_endpoint_url,
        settings="the region of the package and sagemaker_endpoint_url",
        remedy=f"see what these credentials may: aws sagemaker describe-model-package --model-package-name {arn}",
    )


def is_approved(config: SageMakerRegistry, arn: str) -> bool:
    """Whether a package is approved now.

    Raises:
        UsageError: there is no such package.
        EnvironmentFault: SageMaker cannot be asked.
    """
    sagemaker = package_service(config, arn)
    try:
        found = sagemaker.call("describe_model_package", ModelPackageName=arn)
    finally:
        sagemaker.close()
    return bool(found.get("ModelApprovalStatus") == "Approved")
