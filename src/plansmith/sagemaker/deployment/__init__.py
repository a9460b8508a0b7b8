"""Endpoints in AWS: their current state, and the requests that create, change, show and delete them."""
