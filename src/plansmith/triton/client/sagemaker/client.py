"""A client of one model behind an endpoint of SageMaker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from plansmith.errors import UsageError
from plansmith.triton.client.messages import Encoding, Parameter
from plansmith.triton.client.model_client import Answer, ModelClient
from plansmith.triton.client.sagemaker.connection import DEFAULT_ATTEMPTS, EndpointConnection
from plansmith.triton.client.sagemaker.front_end import FrontEndTransport
from plansmith.triton.client.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    TARGET_MODEL,
    TARGET_VARIANT,
    Invocation,
)
from plansmith.triton.client.sagemaker.runtime import RuntimeTransport

if TYPE_CHECKING:
    from plansmith.triton.client.dtypes import Signature
    from plansmith.triton.client.sagemaker.connection import Transport

DEFAULT_TIMEOUT_SECONDS = 70
"""A little more than the 60 s that SageMaker gives a model, so that its own message arrives."""


class SageMakerClient(ModelClient):
    """Asks one model behind an endpoint of SageMaker, from one thread; a context manager.

    SageMaker does not tell what a model takes, so that a signature is needed: `signature_from_package` makes one of a
    release's manifest, `plansmith.sagemaker.signatures` of a release, an archive or a configuration.

    Args:
        endpoint: its name.
        signature: what the model takes and answers.
        model: its name in messages; the endpoint's when empty.
        region: where the endpoint is; that of AWS_REGION and the AWS configuration when empty.
        profile: of the AWS configuration files.
        url: a front end that answers without AWS, such as http://127.0.0.1:8080.
        target_model: the archive of a multi-model endpoint, such as minilm-3.tar.gz.
        target_variant: the production variant; when empty, they share requests by weight.
        inference_id: joins captured data with ground truth that arrives later.
        custom_attributes: for the endpoint's own code.
        encoding: "binary", or "json" for bodies that are JSON throughout.
        timeout_seconds: how long an answer may take.
        attempts: how often a request is sent at most, where it is throttled or the model is not ready.

    Raises:
        UsageError: names or an address that cannot be, or arguments that contradict each other.
    """

    def __init__(  # noqa: PLR0913 - an endpoint has as many settings, and most callers need two of them
        self,
        endpoint: str,
        *,
        signature: Signature,
        model: str = "",
        region: str = "",
        profile: str = "",
        url: str = "",
        target_model: str = "",
        target_variant: str = "",
        inference_id: str = "",
        custom_attributes: str = "",
        encoding: Encoding = "binary",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = DEFAULT_ATTEMPTS,
    ) -> None:
        transport: Transport
        if url and (region or profile):
            raise UsageError(
                "a front end that is reached by its address has no region and no profile", remedy="leave them out"
            )
        if url:
            transport = FrontEndTransport(url, timeout_seconds=timeout_seconds)
        else:
            transport = RuntimeTransport(endpoint, region=region, profile=profile, timeout_seconds=timeout_seconds)
        headers = {
            TARGET_MODEL: target_model,
            TARGET_VARIANT: target_variant,
            INFERENCE_ID: inference_id,
            CUSTOM_ATTRIBUTES: custom_attributes,
        }
        self._endpoint = EndpointConnection(
            transport, headers={name: value for name, value in headers.items() if value}, attempts=attempts
        )
        super().__init__(self._endpoint, model=model or endpoint, version="", encoding=encoding, signature=signature)

    def ask(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Answer:
        """The model's answer to a feed, and who gave it; arguments and errors as for `ModelClient.ask`.

        Raises:
            UsageError: also for a part of the batch that is larger than SageMaker takes; then no part is sent.
        """
        for request in self.requests(feed, outputs=outputs, parameters=parameters)[1:]:
            self._endpoint.invocation(request)
        return super().ask(feed, outputs=outputs, parameters=parameters)

    def invocations(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> list[Invocation]:
        """What `ask` would send; nothing is sent. Raises UsageError as `ask` does."""
        requests = self.requests(feed, outputs=outputs, parameters=parameters)
        return [self._endpoint.invocation(request) for request in requests]
