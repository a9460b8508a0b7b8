"""Client for models served by Triton: `Client(url, model=...)` and its `infer`."""

from plansmith.system.urls import Protocol
from plansmith.triton.client.client import Client
from plansmith.triton.client.messages import Encoding, Parameter
from plansmith.triton.client.model_client import Answer
from plansmith.triton.dtypes import Signature

__all__ = ["Answer", "Client", "Encoding", "Parameter", "Protocol", "Signature"]
