"""Signed releases: signing, signature policies and verification, with OpenSSF model-signing."""
