"""A client for the models that Triton serves: `Client(url, model=...)` and its `infer`."""

from plansmith.addresses import Protocol
from plansmith.client.client import Answer, Client
from plansmith.client.messages import Encoding, Parameter
from plansmith.client.wire import Signature

__all__ = ["Answer", "Client", "Encoding", "Parameter", "Protocol", "Signature"]
