"""How many requests per second one client process of a load test sends to a server that answers at once.

    python -m benchmarks.load_generator [--users 200] [--seconds 10] [--processes 1] [--endpoint]

With --endpoint the requests are signed as those to an endpoint of SageMaker. The server is a process of its own that
reads no body and writes the same bytes; it shares the machine with the client.
The client must reach 4,000 requests per second with 200 users.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import click
import numpy as np

from plansmith.loadtest.payloads.encoding import write_payloads
from plansmith.loadtest.runner.load_runner import run_load
from plansmith.loadtest.stages import LoadPlan, Stage
from plansmith.loadtest.target import Endpoint, LoadTarget, Service, TargetModel
from plansmith.triton.client.messages import Request, WireTensor

REQUIRED = 4000
REQUESTS = 64
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"Content-Length: "


class InstantServer(asyncio.Protocol):
    """Answers each request as soon as its body is there."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer all requests that are whole."""
        self._received += data
        while (end := self._received.find(_HEAD_END)) >= 0:
            head = self._received[:end]
            length = 0
            if (place := head.find(_LENGTH)) >= 0:
                length = int(head[place + len(_LENGTH) :].split(b"\r\n", 1)[0])
            whole = end + len(_HEAD_END) + length
            if len(self._received) < whole:
                return
            self._received = self._received[whole:]
            self._transport.write(_RESPONSE)


def serve(port: Connection) -> None:
    async def listen() -> None:
        server = await asyncio.get_running_loop().create_server(InstantServer, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


def measure(port: int, *, users: int, seconds: float, processes: int, endpoint: bool) -> None:
    arrays = [np.full((1, 64), number, np.float32) for number in range(REQUESTS)]
    requests = [Request("tiny", "", [WireTensor("x", "float32", array.shape, array)], []) for array in arrays]
    with tempfile.TemporaryDirectory() as scratch:
        payloads = Path(scratch, "payloads")
        service: Service = "endpoint" if endpoint else "triton"
        write_payloads(payloads, requests, "http", "binary", is_batched=True, service=service)
        target = LoadTarget(
            place=f"127.0.0.1:{port}",
            models=(TargetModel(model="tiny", payloads=str(payloads)),),
            service=service,
            endpoint=Endpoint(name="prod", region="eu-west-1") if endpoint else None,
        )
        stage = Stage(users=users, seconds=seconds)
        plan = LoadPlan(stages=(stage,), warm_up=Stage(users=users, seconds=2), processes=processes)
        report = run_load(target, plan, folder=Path(scratch, "logs"))
    (result,) = report.stages
    rate = result.stats.requests / result.measured_seconds
    print(
        f"{rate:,.0f} requests per second from {users} users in {processes} process(es), {result.stats.failed} failed"
    )
    print(f"client: {result.client.cores:.2f} cores; {result.client.saturated or 'not saturated'}")
    print(f"required {REQUIRED:,}: {'reached' if rate >= REQUIRED else 'missed'}")


@click.command()
@click.option("--users", default=200, show_default=True)
@click.option("--seconds", default=10.0, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--endpoint", is_flag=True, help="Sign requests as those to an endpoint of SageMaker.")
def main(*, users: int, seconds: float, processes: int, endpoint: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    if endpoint:
        os.environ |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
        os.environ["AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME"] = f"http://127.0.0.1:{port}"
    try:
        measure(port, users=users, seconds=seconds, processes=processes, endpoint=endpoint)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
