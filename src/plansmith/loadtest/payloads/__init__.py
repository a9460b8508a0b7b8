"""Payloads of a load test: inputs and encoded request bodies."""
