"""Stores: releases in a folder or in S3, that appear whole, go back and are proven on arrival."""
