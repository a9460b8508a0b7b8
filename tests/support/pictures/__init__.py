"""The pictures of the documentation, each made from a real run: `make docs-pictures`."""
