"""Triggers: receive registry events and build models; each delivery is stored durably until it has become a run."""
