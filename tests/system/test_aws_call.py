"""A request that AWS does not describe is never sent."""

from __future__ import annotations

import pytest

from plansmith.errors import InternalError, PlansmithError, UsageError
from plansmith.system.aws.service import Call, require_valid


@pytest.mark.parametrize(
    ("operation", "parameters", "error", "message"),
    [
        ("create_endpoint", {"EndpointName": "a"}, InternalError, "Missing required"),
        ("describe_model", {"ModelName": "a", "Size": 3}, InternalError, "Unknown parameter"),
        ("describe_model", {"ModelName": "a_b"}, UsageError, "DescribeModel.ModelName does not match"),
        ("describe_model", {"ModelName": "a" * 64}, UsageError, "longer than 63"),
        ("list_models", {"SortBy": "Size"}, UsageError, "is none of AWS's 2 values"),
    ],
)
def test_invalid_request(
    operation: str, parameters: dict[str, object], error: type[PlansmithError], message: str
) -> None:
    """Missing and unknown parameters, patterns, lengths and lists of texts are checked."""
    with pytest.raises(error, match=message):
        require_valid(Call(service="sagemaker", operation=operation, parameters=parameters), enums=True)
