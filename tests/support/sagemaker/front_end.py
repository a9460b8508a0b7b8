"""SageMaker's front end of the Triton on this machine, and what it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from plansmith.sagemaker.archives import plan_archives, write_archive
from plansmith.sagemaker.selection import PackageRequest
from plansmith.sagemaker.start_script import multi_model_start, single_model_start
from plansmith.triton.checker.archive import unpacked
from plansmith.triton.client.sagemaker.transports import FrontEndResponse, FrontEndTransport
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

START_SECONDS = 600
"""How long a front end may take to start or to answer, on a machine that does much else."""

TARGET_HEADER = "X-Amzn-SageMaker-Target-Model"

BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [0, 0]}]}).encode()
"""Two rows, for every model here."""


class FrontEndAnswer(FrontEndResponse):
    """The answer to one request."""

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """What Triton says is wrong."""
        return str(self.document["error"])


@dataclass(frozen=True)
class FrontEnd:
    """A client of the front end.

    Attributes:
        address: host and port.
        log: of the server.
    """

    address: str
    log: Path

    @property
    def _transport(self) -> FrontEndTransport:
        return FrontEndTransport(f"http://{self.address}", timeout_seconds=START_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> FrontEndAnswer:
        """Send one request, whatever comes of it."""
        response = self._transport.request(method, path, body, {"Content-Type": content_type, **headers})
        return FrontEndAnswer(response.status, response.content_type, response.body)

    def load(self, name: str, folder: Path, *, target_model: str = "") -> FrontEndAnswer:
        """Load the one model, or the ensemble, of an unpacked archive under a name, which is a hash in SageMaker."""
        response = self._transport.load(name, folder, target_model=target_model)
        return FrontEndAnswer(response.status, response.content_type, response.body)

    def unload(self, name: str, *, target_model: str = "") -> FrontEndAnswer:
        """Unload a model with its members."""
        response = self._transport.unload(name, target_model=target_model)
        return FrontEndAnswer(response.status, response.content_type, response.body)

    def invoke(self, name: str, body: bytes = BODY, **options: Any) -> FrontEndAnswer:
        """Ask one model of many."""
        return self.ask("POST", f"/models/{name}/invoke", body, **options)

    def models(self) -> dict[str, str]:
        """The folders of the models that the front end lists, by name; what it lists as nothing is left out."""
        return {
            model["modelName"]: model["modelUrl"] for model in self.ask("GET", "/models").document["models"] if model
        }


@contextmanager
def front_end(
    folder: Path | None,
    installation: Installation,
    log: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
    site: Path | None = None,
) -> Iterator[FrontEnd]:
    """Triton, started as a container starts it.

    Args:
        folder: an unpacked archive; None for a multi-model endpoint.
        installation: the server.
        log: takes what it prints.
        environment: the endpoint's.
        site: of the stand-in for ONNX Runtime.
    """
    with ExitStack() as undo:
        root = folder or Path(undo.enter_context(TemporaryDirectory()))
        start = multi_model_start(environment) if folder is None else single_model_start(root, environment)
        server = undo.enter_context(
            TritonServer(
                root,
                installation,
                log,
                site=site,
                models=(),
                deadline_seconds=START_SECONDS,
                sagemaker_port=0,
                arguments=start.arguments,
                variables=start.variables,
            )
        )
        yield FrontEnd(server.sagemaker_url, log)


@contextmanager
def unpacked_archives(repository: ModelRepository, folder: Path, request: PackageRequest) -> Iterator[dict[str, Path]]:
    """What the archives of releases unpack to, by their names."""
    with ExitStack() as undo:
        archives = [Path(write_archive(plan).file) for plan in plan_archives(repository, request, folder / "archives")]
        yield {archive.name: undo.enter_context(unpacked(archive, folder)) for archive in archives}


def number_in(answer: FrontEndAnswer) -> int:
    """The number that a model answered, in every row of every output."""
    assert answer.status == 200, answer
    (number,) = {float(value) for output in answer.document["outputs"] for value in output["data"]}
    return int(number)
