"""Objects in S3, or in another server that speaks its protocol."""

from plansmith.stores.backend.s3.object_store import S3Objects

__all__ = ["S3Objects"]
