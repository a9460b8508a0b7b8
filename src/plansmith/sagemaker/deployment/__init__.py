"""Endpoint deployment in AWS: current state, and requests that create, update, describe and delete endpoints."""
