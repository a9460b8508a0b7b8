"""Storage backends: folders and S3, and locks in them."""
