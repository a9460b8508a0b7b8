"""Storage backends: a folder, S3, and locks in them."""
