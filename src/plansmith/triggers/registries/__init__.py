"""Model registries: what they tell, which of it starts a build, and what is asked of them."""
