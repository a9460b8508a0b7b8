"""A folder whose conditional writes look first and then write, as some S3 servers do it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Abilities, Changed, KeyTaken
from plansmith.system.aws.bucket import ObjectMetadata

UNSAFE = Abilities(create_once=True, swap=True, safe_in_race=False, checksums=True)
SAFE = UNSAFE.model_copy(update={"safe_in_race": True})


class RacyFolder(FolderObjects):
    """What each request takes is up to chance, so that every order of several clients' requests may happen.

    Args:
        root: the folder.
        seed: of chance.
        abilities: what is believed of it.
    """

    def __init__(self, root: Path, seed: int = 0, abilities: Abilities = UNSAFE) -> None:
        super().__init__(root)
        self.abilities = abilities
        self.before_write: Callable[[str], None] = lambda _: None
        self._dice = random.Random(seed)

    def create(self, key: str, content: bytes) -> str:
        """Look, and write."""
        if self.read(key) is not None:
            raise KeyTaken(key)
        return self._looked_and_written(key, content)

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Look, and write."""
        document = self.read(key)
        if document is None or document.tag != tag:
            raise Changed(key)
        return self._looked_and_written(key, content)

    def put(self, key: str, content: bytes) -> None:
        """Take a while, and write."""
        self.before_write(key)
        self._dawdle()
        super().put(key, content)
        self._dawdle()

    def below(self, prefix: str) -> Iterator[ObjectMetadata]:
        """Take a while, look, and take a while."""
        self._dawdle()
        items = list(super().below(prefix))
        self._dawdle()
        yield from items

    def _looked_and_written(self, key: str, content: bytes) -> str:
        self._dawdle()
        self.put(key, content)
        document = self.read(key)
        return document.tag if document is not None else ""

    def _dawdle(self) -> None:
        time.sleep(self._dice.choice((0, 0, 0.001, 0.004)))
