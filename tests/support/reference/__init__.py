"""Reference pages of docs/reference/, generated from the code: `make docs-reference` writes them."""
