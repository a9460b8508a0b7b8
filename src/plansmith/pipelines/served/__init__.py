"""What the parts of a pipeline run on Triton: copied beside their model.py, so nothing here knows plansmith.

Modules import each other relatively, and besides them only the standard library, NumPy (1 or 2) and what a part's
requirements name (tokenizers, Pillow).
"""
