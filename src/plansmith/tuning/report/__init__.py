"""Search report in sentences and as an HTML page."""
