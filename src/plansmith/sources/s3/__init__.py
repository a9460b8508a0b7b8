"""Models in buckets of S3: found, pinned by what S3 knows of their objects, brought here and unpacked."""
