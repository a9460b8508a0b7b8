"""Commands about the server and what it reads."""
