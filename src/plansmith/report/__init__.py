"""HTML report on a release, or on a compile that the accuracy gate refused; one self-contained page, and JSON."""
