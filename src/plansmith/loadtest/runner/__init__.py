"""Load test runner: runs the stages on client processes and aggregates their reports."""
