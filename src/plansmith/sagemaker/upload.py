"""Archives on their way into S3: each appears whole, what is there is not sent, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.sagemaker.archives import Archive
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.backend.s3 import S3Objects


class Upload(Record):
    """An archive in S3.

    Attributes:
        uri: the object, which ModelDataUrl of a SageMaker model names.
        sent: whether it was sent; or was there already.
    """

    uri: str
    sent: bool


def plan_upload(objects: S3Objects, archive: Archive) -> Upload:
    """What `upload_archive` would do; nothing is sent.

    Args:
        objects: the prefix that takes it.
        archive: the archive; of one that was only planned, the size alone is compared with what is there.

    Raises:
        RepositoryError: another content has its name.
    """
    key = Path(archive.file).name
    held = objects.find(key)
    if held is not None:
        is_same = held.bytes == archive.bytes
        if is_same and archive.digest:
            is_same = (held.sha256 or objects.sha256(key)) == archive.digest
        if not is_same:
            raise RepositoryError(
                f"{objects.place}/{key} is there already, with other content, and is not overwritten: endpoints keep"
                " what they loaded",
                remedy="choose another --upload (in an endpoint's file: another bucket), or remove it",
            )
    return Upload(uri=f"{objects.place}/{key}", sent=held is None)


def upload_archive(objects: S3Objects, archive: Archive, progress: Moved = untold) -> Upload:
    """Send an archive to S3, unless it is there; what an interrupted call sent of it is not sent again.

    Args:
        objects: the prefix that takes it, under its file's name.
        archive: the archive, which was written.
        progress: told how many more bytes are on their way; called by several threads.

    Raises:
        RepositoryError: another content has its name, or S3 refuses it.
        EnvironmentFault: S3 cannot be reached.
    """
    upload = plan_upload(objects, archive)
    if upload.sent:
        path = Path(archive.file)
        objects.send(path, path.name, archive.digest, progress)
    return upload
