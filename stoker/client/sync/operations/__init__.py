# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of the API, from the OpenAPI document."""
