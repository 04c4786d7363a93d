"""Errors that end a sequence."""


class DrawError(Exception):
    """No token can be drawn for a sequence. The message is meant for the client."""


class FormError(DrawError):
    """The requested form cannot be followed."""
