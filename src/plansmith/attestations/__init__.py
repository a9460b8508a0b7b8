"""Attestations of releases: SLSA provenance in an in-toto statement, and a CycloneDX bill of materials."""
