"""Fleets on work pools."""
