"""Rewrites of what models do with images."""

from __future__ import annotations

from plansmith.compilers.rewrites.registry import Rewrite

REWRITES: tuple[Rewrite, ...] = ()
