"""Writes the typed client of the API from the server's OpenAPI document.

`python -m tools.client_api` writes the files, and `--check` only compares them.
"""
