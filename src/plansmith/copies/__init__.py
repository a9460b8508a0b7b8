"""Renamed copies of releases, written into folders or sent to a Triton that runs."""
