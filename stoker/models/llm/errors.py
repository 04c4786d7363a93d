"""Why a sequence cannot go on."""


class DrawError(Exception):
    """No token can be drawn for a sequence; the message is for its client."""


class FormError(DrawError):
    """The form that was asked for cannot be followed."""
