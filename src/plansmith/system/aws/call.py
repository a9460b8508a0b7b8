"""Requests to AWS as data: printed, compared, and checked by AWS's own description of its services."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import Field

from plansmith.errors import InternalError, UsageError
from plansmith.records.model import Record
from plansmith.system.aws.client import not_installed

_JAVA_ESCAPE = re.compile(r"\\[pu]")


class Call(Record):
    """One request to AWS.

    Attributes:
        service: botocore's name, such as sagemaker.
        operation: a method of boto3's client, such as create_model.
        parameters: of the method.
    """

    service: str
    operation: str
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def action(self) -> str:
        """The operation by its name in AWS's documentation, such as CreateModel."""
        return "".join(part.capitalize() for part in self.operation.split("_"))

    @property
    def summary(self) -> str:
        """One line for a person: `create model bert-main-0a1b2c`."""
        names = ("ModelName", "EndpointConfigName", "EndpointName", "Key", "ResourceId", "ResourceArn")
        order = names[2:] if self.operation in {"create_endpoint", "update_endpoint", "delete_endpoint"} else names
        name = next((str(self.parameters[field]) for field in order if field in self.parameters), "")
        return f"{self.operation.replace('_', ' ')} {name}".rstrip()


def require_valid(call: Call, *, enums: bool = False) -> None:
    """Check a request against AWS's description of the service; nothing is sent.

    Args:
        call: the request.
        enums: also check texts that are one of a list. AWS adds to these lists, and an older botocore knows fewer.

    Raises:
        UsageError: a value is longer than AWS takes it, or has other characters.
        InternalError: AWS has no such request.
        EnvironmentFault: botocore is not installed.
    """
    try:
        from botocore.validate import ParamValidator
    except ImportError as error:
        raise not_installed() from error
    shape = _service_model(call.service).operation_model(call.action).input_shape
    report = ParamValidator().validate(call.parameters, shape)
    if report.has_errors():
        raise InternalError(
            f"{call.service} {call.action} is no valid request: {report.generate_report()}",
            remedy="report it with the endpoint's file; nothing was sent",
        )
    problems = [
        problem
        for value, kind, place in _values(call.parameters, shape, call.action)
        for problem in _value_problems(value, kind, place, enums=enums)
    ]
    if problems:
        raise UsageError(
            "\n  ".join([f"AWS would refuse {len(problems)} value(s):", *problems]),
            remedy="change them in the endpoint's file; nothing was sent",
        )


@cache
def _service_model(service: str) -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model(service, "service-2"), service)


def _values(value: Any, shape: Any, place: str) -> Iterator[tuple[Any, Any, str]]:
    """A value and all values in it, each with its shape and its place."""
    yield value, shape, place
    if shape.type_name == "structure":
        for name, inner in value.items():
            yield from _values(inner, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        for number, inner in enumerate(value):
            yield from _values(inner, shape.member, f"{place}[{number}]")
    elif shape.type_name == "map":
        for name, inner in value.items():
            yield name, shape.key, f"{place} (name)"
            yield from _values(inner, shape.value, f"{place}.{name}")


def _value_problems(value: Any, shape: Any, place: str, *, enums: bool) -> Iterator[str]:
    """Limits that botocore leaves to the server: lengths, patterns, lists of texts.

    Patterns with escapes that Java knows and Python does not are left out.
    """
    longest, pattern = shape.metadata.get("max"), shape.metadata.get("pattern", "")
    if longest is not None and shape.type_name in {"string", "list", "map"} and len(value) > longest:
        yield f"{place} is longer than {longest}"
    if shape.type_name != "string":
        return
    if pattern and not _JAVA_ESCAPE.search(pattern) and not re.fullmatch(pattern, value):
        yield f"{place} does not match {pattern}: {value}"
    if enums and shape.enum and value not in shape.enum:
        yield f"{place} is none of AWS's {len(shape.enum)} values: {value}"
