"""`s3://bucket/prefix` and `s3://bucket/model.tar.gz`: a model in a bucket, as typed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plansmith.errors import UsageError
from plansmith.records.destination import S3_SCHEME, wrong_place

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
"""How the keys of archives end, which hold a model each."""

_FORMS = "write s3://BUCKET/PREFIX or s3://BUCKET/KEY.tar.gz, with @ and the 64 digits of a revision where one is meant"
_PINNED = re.compile(r"(.+)@([0-9a-f]{64})")


@dataclass(frozen=True)
class S3Uri:
    """Where a model lies in S3.

    Args:
        address: s3://bucket/prefix of a folder, or s3://bucket/key of an archive; without a slash at its end.
        revision: the digest that its objects have to have; any when empty.
    """

    address: str
    revision: str = ""

    @property
    def is_archive(self) -> bool:
        """Whether it is one object, with the model packed in it."""
        return self.address.endswith(ARCHIVE_SUFFIXES)

    @property
    def name(self) -> str:
        """The last part of the address, without the suffix of an archive."""
        last = self.address.rpartition("/")[2]
        return next((last.removesuffix(suffix) for suffix in ARCHIVE_SUFFIXES if last.endswith(suffix)), last)


def read_s3_uri(text: str) -> S3Uri:
    """Read a source that begins with s3://.

    Raises:
        UsageError: it is no place in S3.
    """
    pinned = _PINNED.fullmatch(text)
    address, revision = pinned.groups() if pinned else (text, "")
    wrong = "it begins otherwise" if not address.startswith(S3_SCHEME) else wrong_place(address)
    if wrong is not None:
        raise UsageError(f"{text!r} is no place in S3: {wrong}", remedy=_FORMS)
    return S3Uri(address.rstrip("/"), revision)
