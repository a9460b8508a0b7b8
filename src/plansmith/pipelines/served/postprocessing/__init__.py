"""Postprocessing: turns model outputs into results for users and programs. Copied with `served`."""
