"""The server: its installation, its process, model control, the served check."""
