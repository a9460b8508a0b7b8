"""The server and the models that a load test sends requests to: all that a client process has to know of them."""

from __future__ import annotations

from pydantic import Field

from plansmith.records.model import Record
from plansmith.system.urls import Address, Protocol
from plansmith.triton.client import Encoding


class TargetModel(Record):
    """One model of the mix.

    Attributes:
        model: its name.
        version: empty for the one that the server chooses.
        payloads: absolute path of the folder of its encoded requests (`payloads.encoding`); empty in reports.
        weight: its share of the requests, in proportion to the other models'.
    """

    model: str
    version: str = ""
    payloads: str
    weight: float = 1


class LoadTarget(Record):
    """A Triton and the models on it.

    Attributes:
        place: `host:port`, over HTTP with a path where there is one.
        secure: whether TLS is used.
        protocol: http or grpc.
        encoding: of the bodies.
        headers: sent with each request; in reports, their names alone.
        models: one or more.
    """

    place: str
    secure: bool = False
    protocol: Protocol = "http"
    encoding: Encoding = "binary"
    headers: dict[str, str] = Field(default_factory=dict)
    models: tuple[TargetModel, ...]

    @property
    def address(self) -> Address:
        """Where it answers."""
        return Address(self.place, self.secure, self.protocol)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each model in the results: with the version where several versions are in the mix."""
        models = [model.model for model in self.models]
        return tuple(
            f"{model.model}@{model.version}" if models.count(model.model) > 1 else model.model for model in self.models
        )
