"""The command line, in this process or one of its own."""
