"""The synchronous client. `python -m tools.client_api` writes it from stoker/client/aio."""
