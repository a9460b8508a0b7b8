"""Commands on the server and its model repository."""
