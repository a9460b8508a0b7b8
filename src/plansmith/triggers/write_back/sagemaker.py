"""Tells packages of the SageMaker Model Registry what came of their builds, in their metadata.

The limits are those of docs.aws.amazon.com/sagemaker/latest/APIReference/API_UpdateModelPackage.html.
"""

from __future__ import annotations

from collections.abc import Callable

from plansmith.config.service.triggers import SageMakerRegistry
from plansmith.errors import UsageError
from plansmith.triggers.registries.sagemaker_packages import package_service
from plansmith.triggers.write_back.verdicts import Form, VersionReport

FORM = Form(longest_name=128, longest_value=256, foreign=r"[^\w .:/=+\-@]", as_json=False)
"""What the metadata of a package takes: no JSON, which has braces and commas."""

MOST_PROPERTIES = 50


class SageMakerWriter:
    """Writes to the SageMaker Model Registry; what else stands in a package's metadata stays.

    Args:
        config: of the registry.
    """

    def __init__(self, config: SageMakerRegistry) -> None:
        self._config = config

    def write(self, telling: VersionReport, still_ours: Callable[[], bool]) -> bool:
        """As `Writer.write`. What is there already is not written again: each change is an event of its own."""
        arn = telling.event.version
        sagemaker = package_service(self._config, arn)
        try:
            found = sagemaker.call("describe_model_package", ModelPackageName=arn)
            there = found.get("CustomerMetadataProperties") or {}
            # With what is there: nothing says whether what is left out of an update stays.
            entries = {**there, **FORM.texts(telling)}
            if entries == there:
                return True
            if len(entries) > MOST_PROPERTIES:
                raise UsageError(
                    f"the metadata of {arn} would have {len(entries)} entries, and SageMaker takes {MOST_PROPERTIES}",
                    remedy="name fewer targets in the rule, or remove entries from the package",
                )
            if not still_ours():
                return False
            sagemaker.call("update_model_package", ModelPackageArn=arn, CustomerMetadataProperties=entries)
        finally:
            sagemaker.close()
        return True
