"""Load test results as a table, as CSV, and as summary sentences."""
