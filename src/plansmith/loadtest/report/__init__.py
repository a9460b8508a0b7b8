"""The results of a load test as a table, as CSV, and in sentences."""
