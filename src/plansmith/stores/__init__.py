"""Stores: releases in a folder or in S3, with atomic publication, rollback and verification on arrival."""
