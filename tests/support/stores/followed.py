"""A store, a mirror of it, and what syncs the one to the other; a Triton beside it that can be started again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from plansmith.errors import EnvironmentFault
from plansmith.records.destination import Publication
from plansmith.stores.backend.documents import read_document
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.layout import live_key
from plansmith.stores.publication import publish_release
from plansmith.stores.records import LiveReport
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror
from plansmith.stores.sync.servers import MirrorServers
from plansmith.stores.sync.sync import Sync, SyncContext
from plansmith.system.aws.bucket import Document
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton
from plansmith.triton.server.server import TritonServer

from ..triton.versions import MODEL
from .python_versions import python_release

LOADER = "beside"


class Cuttable(FolderObjects):
    """A store's folder of which the cable can be pulled, or which is mounted and whose server has forgotten it."""

    is_cut = False
    is_stale = False
    puts = 0

    def read(self, key: str) -> Document | None:
        if self.is_cut:
            raise EnvironmentFault(f"{self.place} cannot be reached", remedy="plug it in")
        if self.is_stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), key)
        return super().read(key)

    def put(self, key: str, content: bytes) -> None:
        self.puts += 1
        if self.is_cut:
            raise EnvironmentFault(f"{self.place} cannot be reached", remedy="plug it in")
        super().put(key, content)


class Site:
    """A repository that versions are compiled into, a store, and a mirror.

    Args:
        folder: holds all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = Cuttable(folder / "store")
        self.store = Store(self.objects)
        self.mirror = Mirror(folder / "mirror")
        self.lines: list[str] = []
        self._repository = ModelRepository(folder / "repository")

    def publish(self, initialize: str = "pass", *, model: str = MODEL, latest: int = 1) -> Publication:
        """Make the next version, which does this when it is loaded, and have `current` stand for it."""
        packages = self.folder / "packages"
        publication = python_release(self._repository, packages, model=model, initialize=initialize, latest=latest)
        manifest = self._repository.manifest(model, publication.version)
        digester = Digester(self.folder / "digests.sqlite")
        return publish_release(self.store, Path(publication.release), manifest, digester)

    @contextmanager
    def sync(self, *urls: str, models: tuple[str, ...] = ()) -> Iterator[Sync]:
        """What keeps the mirror, and servers at these addresses, on the store; it never pauses."""
        with self.mirror.lock(self.store, alone=True):
            yield Sync(
                SyncContext(
                    store=self.store,
                    mirror=self.mirror,
                    loaders=MirrorServers(urls),
                    name=LOADER,
                    pause_seconds=0,
                    say=self.lines.append,
                ),
                models,
            )

    def report(self, model: str = MODEL) -> LiveReport:
        """What the loader last told the store."""
        document = read_document(self.objects, live_key(model, LOADER), LiveReport)
        assert document is not None
        return document

    def take_lines(self) -> str:
        """The lines since this was asked last."""
        lines = "\n".join(self.lines)
        self.lines.clear()
        return lines


class MirrorTriton:
    """A Triton that reads a mirror and has loaded nothing yet, for as long as the block lasts; always at one address.

    Args:
        root: the mirror's.
        installation: of Triton.
    """

    server: TritonServer

    def __init__(self, root: Path, installation: Installation) -> None:
        self._root = root
        self._installation = installation
        self._ports = (0, 0, 0)

    def __enter__(self) -> Self:
        self._root.mkdir(exist_ok=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()

    def start(self) -> None:
        """Start it, or start it again, also where it was killed."""
        if self._ports != (0, 0, 0):
            self.server.stop()
        self.server = TritonServer(
            self._root,
            self._installation,
            self._root.with_name("triton.log"),
            models=[],
            exit_on_error=False,
            ports=self._ports,
        )
        self.server.__enter__()
        urls = (self.server.http_url, self.server.grpc_url, self.server.metrics_url)
        http, grpc, metrics = (int(url.rpartition(":")[2]) for url in urls)
        self._ports = http, grpc, metrics

    @property
    def url(self) -> str:
        """Where it is told to load."""
        return f"grpc://{self.server.grpc_url}"

    def ready(self, model: str = MODEL) -> list[int]:
        """The versions that answer."""
        return RunningTriton(self.url).ready(model)
