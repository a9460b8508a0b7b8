"""Small models with random weights, as their libraries save them."""
