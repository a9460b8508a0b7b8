"""Small graphs, and mistakes planted in them."""
