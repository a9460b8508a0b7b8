"""Deployments, work pools and automations."""
