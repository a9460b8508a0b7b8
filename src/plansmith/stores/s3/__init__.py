"""Objects in S3, or in another server that speaks its protocol."""

from plansmith.stores.s3.objects import S3Objects

__all__ = ["S3Objects"]
