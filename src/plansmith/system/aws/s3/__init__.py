"""Single requests to S3, or to another server that speaks its protocol."""
