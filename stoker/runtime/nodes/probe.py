"""Probes whether a gateway could reach a node, without a request to it."""

import asyncio
import ssl
from enum import StrEnum

from stoker.runtime.nodes import identity, messages
from stoker.runtime.nodes.framed_connection import FramedConnection
from stoker.runtime.nodes.leases import NodeRecord
from stoker.runtime.nodes.messages import ProtocolMismatchError, Welcome, to_gateway, to_node
from stoker.store.secret import ServerSecret

TIMEOUT_S = 5.0
"""Connection timeout in seconds, as for a gateway."""
_MOST_BYTES = 4096


class Why(StrEnum):
    """Reason that a node was not reached."""

    NO_ANSWER = "no_answer"
    """No connection is accepted at its address, or no answer arrives."""
    ANOTHER = "another"
    """The peer does not have the node's key."""
    REFUSED = "refused"
    """The node does not accept the prober as a server of its database."""
    VERSION = "version"
    """The node and this release have no version of the protocol in common."""


class NodeUnreachableError(Exception):
    """Raised if a node was not reached. The message describes the finding."""

    def __init__(self, why: Why, found: str) -> None:
        super().__init__(found)
        self.why = why


async def reach(record: NodeRecord, secret: ServerSecret) -> float:
    """Measures the seconds from a greeting to the node's answer, after connecting over TCP and TLS
    with the certificate from the database.

    Raises `NodeUnreachableError`.
    """
    loop = asyncio.get_running_loop()
    host, _, port = record.address.rpartition(":")
    answer: asyncio.Future[Welcome | None] = loop.create_future()

    def received(frames: list[bytes]) -> None:
        message = to_gateway.unpack(frames[:1])
        if isinstance(message, Welcome) and not answer.done():
            answer.set_result(message)

    def lost() -> None:
        if not answer.done():
            answer.set_result(None)

    link = FramedConnection(received, lost, most_bytes=_MOST_BYTES)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await loop.create_connection(
                lambda: link,
                host.strip("[]"),
                int(port),
                ssl=identity.trusting(record.certificate),
                server_hostname="",
            )
            token, begun = identity.token(secret, record.certificate), loop.time()
            link.send(to_node.pack(messages.hello(token, is_probe=True)))
            welcome = await answer
            took_s = loop.time() - begun
    except TimeoutError as error:
        raise NodeUnreachableError(Why.NO_ANSWER, f"no answer in {TIMEOUT_S:g} s") from error
    except ssl.SSLError as error:
        issue = "another server answers at this address"
        raise NodeUnreachableError(Why.ANOTHER, issue) from error
    except ConnectionResetError as error:
        issue = "another server answers at this address, or the node has too many connections"
        raise NodeUnreachableError(Why.ANOTHER, issue) from error
    except OSError as error:
        issue = error.strerror or str(error) or type(error).__name__
        raise NodeUnreachableError(Why.NO_ANSWER, issue) from error
    finally:
        link.abort()
    if welcome is None:
        raise NodeUnreachableError(Why.REFUSED, "it closes the connection after the greeting")
    try:
        messages.agreed_version(welcome)
    except ProtocolMismatchError as error:
        raise NodeUnreachableError(Why.VERSION, str(error)) from error
    return took_s
