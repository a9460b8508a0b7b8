"""Export rewrites: work around known exporter errors; small, named, and active only during an export."""
