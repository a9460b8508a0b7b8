"""The client for the models that Triton serves, by its public name: `from plansmith.client import Client`."""

from plansmith.triton.client import Answer, Client, Encoding, Parameter, Protocol, Signature

__all__ = ["Answer", "Client", "Encoding", "Parameter", "Protocol", "Signature"]
