"""Release steps: from a validated engine to a published version."""
