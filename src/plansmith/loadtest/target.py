"""Load test target: the server and models that receive the requests, as a client process needs them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plansmith.records.model import Record
from plansmith.system.urls import Address, Protocol
from plansmith.triton.client import Encoding

Service = Literal["triton", "front-end", "endpoint"]
"""What answers: Triton's own API, SageMaker's front end of a Triton, or an endpoint of SageMaker at AWS."""


class TargetModel(Record):
    """One model of the mix.

    Attributes:
        model: its name.
        version: empty for the one that the server chooses.
        payloads: absolute path of the folder of its encoded requests (`payloads.encoding`); empty in reports.
        weight: its share of the requests, in proportion to the other models'.
        target_model: of a multi-model endpoint, the archive that answers.
    """

    model: str
    version: str = ""
    payloads: str
    weight: float = 1
    target_model: str = ""


class Endpoint(Record):
    """SageMaker endpoint in AWS.

    Attributes:
        name: of the endpoint.
        region: where it is.
        profile: of the AWS configuration files; empty for what the environment says.
        variant: the production variant that answers; empty for each by its weight.
    """

    name: str
    region: str
    profile: str = ""
    variant: str = ""


class LoadTarget(Record):
    """Load test target: a server and its models.

    Attributes:
        place: `host:port`, over HTTP with a path where there is one.
        secure: whether TLS is used.
        protocol: http or grpc.
        encoding: of the bodies.
        headers: sent with each request; in reports, their names alone.
        models: one or more.
        service: what answers there.
        endpoint: whose models these are, where `service` is endpoint.
    """

    place: str
    secure: bool = False
    protocol: Protocol = "http"
    encoding: Encoding = "binary"
    headers: dict[str, str] = Field(default_factory=dict)
    models: tuple[TargetModel, ...]
    service: Service = "triton"
    endpoint: Endpoint | None = None

    @property
    def address(self) -> Address:
        """The server's address."""
        return Address(self.place, self.secure, self.protocol)

    @property
    def url(self) -> str:
        """The server's HTTP URL without a path."""
        return f"http{'s' if self.secure else ''}://{self.place.partition('/')[0]}"

    @property
    def label(self) -> str:
        """The label of the server in messages."""
        if self.endpoint is not None:
            return f"endpoint {self.endpoint.name} in {self.endpoint.region}"
        return f"the front end at {self.address}" if self.service == "front-end" else f"the server at {self.place}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each model in the results; with the version if several versions are in the mix."""
        models = [model.model for model in self.models]
        return tuple(
            f"{model.model}@{model.version}" if models.count(model.model) > 1 else model.model for model in self.models
        )
