"""Webhook receiver: accepts deliveries of registries over HTTP."""
