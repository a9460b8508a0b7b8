"""A process that sends files to a store, fetches them, or publishes a release: what plansmith's part in it costs.

    python -m benchmarks.store_client send|fetch|publish JOB

JOB is a JSON document, see `Job`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from plansmith.records.destination import Location
from plansmith.records.model import FileEntry, Record
from plansmith.stores.backend.object_store import Abilities
from plansmith.stores.layout import object_key
from plansmith.stores.publication import publish_release
from plansmith.stores.reader import in_parallel
from plansmith.stores.store import open_objects, open_store
from plansmith.stores.transfer import send_contents
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository


class Job(Record):
    """What to do.

    Args:
        place: the store.
        folder: of the files or, for `publish`, the repository.
        files: by their names and digests, which a compile has from when it made them.
        abilities: what the server was seen to do when the store was made.
    """

    place: Location
    folder: str
    files: tuple[FileEntry, ...] = ()
    abilities: Abilities | None = None


def send(job: Job) -> None:
    """Send files as a publication does."""
    objects = open_objects(job.place, Path())
    assert job.abilities is not None
    objects.abilities = job.abilities
    send_contents(objects, Path(job.folder), job.files)


def fetch(job: Job) -> None:
    """Fetch files, small ones at once."""
    objects = open_objects(job.place, Path())
    folder = Path(job.folder)
    folder.mkdir()
    in_parallel(lambda file: objects.fetch(object_key(file.sha256), folder / file.path, file.sha256), job.files)


def publish(job: Job) -> None:
    """Publish the only release of a repository."""
    repository = ModelRepository(Path(job.folder))
    (manifest,) = (repository.manifest(name, 1) for name in repository.models())
    digester = Digester(Path(job.folder).parent / "digests.sqlite")
    publish_release(open_store(job.place, Path()), repository.release(manifest.name, 1), manifest, digester)


if __name__ == "__main__":
    {"send": send, "fetch": fetch, "publish": publish}[sys.argv[1]](Job.model_validate_json(sys.argv[2]))
