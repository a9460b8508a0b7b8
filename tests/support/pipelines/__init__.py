"""Texts, images and settings that pipelines are asked about."""
