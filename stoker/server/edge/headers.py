"""Checks the headers of a request for ambiguities."""

from stoker.base.errors import InvalidRequestError
from stoker.platform.web.exchange import RawHeaders


def ambiguity(headers: RawHeaders) -> InvalidRequestError | None:
    """Returns an error if a proxy before this server might interpret the headers differently.

    Accepts exactly one Host (RFC 9112, section 3.2) and only the transfer coding chunked
    (section 6.1).
    """
    hosts, codings = 0, list[bytes]()
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            codings.append(value)
    if hosts != 1:
        message = f"A request must have exactly one Host header. This request has {hosts}."
        return InvalidRequestError(message, param="host")
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        message = "The only supported Transfer-Encoding is 'chunked', applied once."
        return InvalidRequestError(message, param="transfer-encoding")
    return None


def has_body(headers: RawHeaders) -> bool:
    """Returns True if the headers announce a body that is not empty."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )
