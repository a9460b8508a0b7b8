"""Simulated years: actors of a store on a virtual clock, in an order that a seed decides."""
