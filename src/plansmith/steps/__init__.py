"""The steps of a compile, their order, and what runs them."""
