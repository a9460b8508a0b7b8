"""From an engine that was judged to a published version."""
