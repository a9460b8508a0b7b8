"""Services of AWS, and servers that speak the protocol of its S3."""
