"""The asynchronous client. `python -m tools.client_api` writes its synchronous twin from it."""
