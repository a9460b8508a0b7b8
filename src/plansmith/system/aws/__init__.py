"""AWS services, and S3-compatible servers."""
