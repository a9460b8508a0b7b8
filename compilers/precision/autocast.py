"""ModelOpt's AutoCast."""
from __future__ import annotations
def methods(model, samples, options, *, precision):
    raise NotImplementedError
