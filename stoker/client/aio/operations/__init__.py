# `python -m tools.client_api` writes this file.
"""Operations of the API, from the OpenAPI document."""
