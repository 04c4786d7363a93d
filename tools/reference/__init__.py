"""Reference pages that are written from the code. `python -m tools.reference` writes them."""
