"""Runs the stages of a load test on client processes, and sums up what they report."""
