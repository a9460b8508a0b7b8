"""SQS queue: delivers messages at least once, and again until they are deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from plansmith.system.aws.service import AwsService

WAIT_SECONDS = 10
"""How long a request waits for a message: nobody is told sooner by asking more often, and each request costs."""

_PER_REQUEST = 10
_READ_SECONDS = WAIT_SECONDS + 20
_HOST = re.compile(r"(?:sqs\.)?([a-z0-9-]+)\.(?:queue\.)?amazonaws\.com(?:\.cn)?")


def region_in(url: str) -> str:
    """Return the region in a queue URL; empty if it is not one of AWS's own."""
    named = _HOST.fullmatch(urlsplit(url).hostname or "")
    return named[1] if named else ""


@dataclass(frozen=True)
class Message:
    """A queue message, with its receipt handle for deletion."""

    body: bytes
    receipt: str


class Queue:
    """An SQS queue; makes no request until one is needed.

    Args:
        url: of the queue.
        region: of it; that of its address or of the environment where it is empty.
        endpoint_url: of SQS, where it is not AWS's own.
        wait_seconds: how long `receive` waits for a message.
        endpoint_key: the key that `endpoint_url` has in the service's file.
    """

    def __init__(
        self,
        url: str,
        *,
        region: str = "",
        endpoint_url: str = "",
        wait_seconds: int = WAIT_SECONDS,
        endpoint_key: str = "endpoint_url",
    ) -> None:
        self.url = url
        self._wait_seconds = wait_seconds
        self._sqs = AwsService(
            "sqs",
            f"the queue {url}",
            region=region or region_in(url),
            endpoint_url=endpoint_url,
            read_seconds=_READ_SECONDS,
            settings=f"queue_url, region and {endpoint_key}",
            remedy=f"see what these credentials may: aws sqs get-queue-attributes --queue-url {url}",
        )

    def receive(self) -> list[Message]:
        """Receive some of the available messages; none if there are none.

        Raises:
            EnvironmentFault: boto3 is not installed, or the queue cannot be asked.
        """
        answer = self._sqs.call(
            "receive_message", QueueUrl=self.url, MaxNumberOfMessages=_PER_REQUEST, WaitTimeSeconds=self._wait_seconds
        )
        return [Message(entry["Body"].encode(), entry["ReceiptHandle"]) for entry in answer.get("Messages", ())]

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages, so that they are not delivered again.

        Raises:
            EnvironmentFault: it could not be asked: they will come again.
        """
        for begin in range(0, len(messages), _PER_REQUEST):
            some = messages[begin : begin + _PER_REQUEST]
            entries = [{"Id": str(number), "ReceiptHandle": message.receipt} for number, message in enumerate(some)]
            # One that fails comes again, which does no harm.
            self._sqs.call("delete_message_batch", QueueUrl=self.url, Entries=entries)

    def close(self) -> None:
        """Close the connections."""
        self._sqs.close()
