"""Served pipeline code: copied next to each part's model.py, so it does not import plansmith.

Modules import each other relatively, and besides them only the standard library, NumPy (1 or 2) and what a part's
requirements name (tokenizers, Pillow).
"""
