"""Made-up records that reports are drawn from."""
