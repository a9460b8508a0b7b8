"""Fuzzing of what reads bytes of others: `python -m tests.support.fuzz READER --seconds 60`, or `make fuzz`."""
