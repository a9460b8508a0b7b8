"""Clients for served models: `Client(url, ...)` for Triton, `SageMakerClient(endpoint, ...)` for Amazon SageMaker."""

from plansmith.triton.client import Answer, Client, Encoding, Parameter, Protocol, Signature
from plansmith.triton.client.sagemaker.client import SageMakerClient
from plansmith.triton.dtypes import signature_from_package

__all__ = [
    "Answer",
    "Client",
    "Encoding",
    "Parameter",
    "Protocol",
    "SageMakerClient",
    "Signature",
    "signature_from_package",
]
