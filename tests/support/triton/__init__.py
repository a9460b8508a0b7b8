"""Triton as `plansmith serve` runs it, models that tell their version, clients without pause."""
