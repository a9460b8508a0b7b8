"""`plansmith triggers watch` is killed between any two steps, and what a queue held is in the inbox once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from ...support.cli.command import CommandLine
from ...support.servers.aws_server import ENVIRONMENT
from ...support.stores.fault_proxy import Answer, FaultProxy, Forward, Handling, Request, cut_after, cut_before, killing
from ...support.triggers.aws_account import Account, Queue
from ...support.triggers.watched import WatchedService
from ...support.waiting import SECONDS, soon

pytestmark = pytest.mark.slow

WATCH_ONCE = ("triggers", "watch", "--once")
RULES = ({"registry": "aws", "when": "approved"},)


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultProxy]:
    """What stands between the command and AWS."""
    with FaultProxy(int(s3_server.rpartition(":")[2])).running() as instance:
        yield instance


@pytest.fixture
def queue(account: Account) -> Queue:
    return account.queue()


@pytest.fixture
def service(tmp_path: Path, proxy: FaultProxy, queue: Queue) -> WatchedService:
    """It reaches AWS through the proxy alone, and the model registry's list not at all."""
    path = queue.url.removeprefix(queue.account.address)
    queue_url, endpoint = f"{proxy.endpoint}{path}", proxy.endpoint
    registry = {
        "type": "sagemaker",
        "queue_url": queue_url,
        "endpoint_url": endpoint,
        "sagemaker_endpoint_url": "http://127.0.0.1:9",
    }
    return WatchedService(tmp_path, {"aws": registry}, *RULES)


class Killer:
    """Kills the command as it asks the queue for something, as soon as it is known which process that is."""

    def __init__(self, operation: str, step: Handling) -> None:
        self._operation, self._step = operation, step
        self._victim: Future[int] = Future()

    def __call__(self, request: Request, forward: Forward) -> Answer:
        if request.headers.get("x-amz-target") != f"AmazonSQS.{self._operation}":
            return forward(request)
        return killing(self._victim.result(SECONDS), self._step)(request, forward)

    def kill(self, number: int) -> None:
        """The process."""
        self._victim.set_result(number)


@pytest.mark.parametrize("step", [cut_before, cut_after], ids=["before", "after"])
@pytest.mark.parametrize(
    ("operation", "kept"), [("ReceiveMessage", 0), ("DeleteMessageBatch", 1)], ids=["received", "deleted"]
)
def test_killed_command_keeps_message_once(
    operation: str, kept: int, step: Handling, service: WatchedService, queue: Queue, proxy: FaultProxy
) -> None:
    """A message is in the inbox once whenever the command was killed."""
    registry = queue.account.registry(queue)
    registry.approve(registry.register())
    killer = Killer(operation, step)
    proxy.handling = killer
    with service.watch(**ENVIRONMENT) as watching:
        killer.kill(watching.program.number)
        assert soon(lambda: watching.program.is_running, False) is False
    assert len(service.entries()) == kept
    assert queue.length == (0 if (operation, step) == ("DeleteMessageBatch", cut_after) else 2)
    proxy.reset()
    answer = CommandLine(service.folder)(*WATCH_ONCE, **ENVIRONMENT)
    assert answer.status == 0, answer.stderr
    assert service.models() == [registry.group]
    assert queue.length == 0
