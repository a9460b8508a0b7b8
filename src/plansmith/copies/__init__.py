"""Renamed copies of releases, written into folders or sent to a running Triton server."""
