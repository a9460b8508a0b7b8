"""What stands behind a model: its outputs become what a person or a program reads. Copied with `served`."""
