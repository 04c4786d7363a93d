"""Limits on a connection before and during a request."""
