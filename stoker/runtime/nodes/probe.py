"""Whether a node can be reached as a gateway reaches it; nothing is asked of it."""

import asyncio
import ssl
from enum import StrEnum

from stoker.runtime.nodes import identity, messages
from stoker.runtime.nodes.framed_connection import Link
from stoker.runtime.nodes.leases import NodeRecord
from stoker.runtime.nodes.messages import Hello, Welcome, to_gateway, to_node
from stoker.store.secret import ServerSecret

TIMEOUT_S = 5.0
"""As long as a gateway waits for a connection."""
_MOST_BYTES = 4096


class Why(StrEnum):
    """Why a node was not reached."""

    NO_ANSWER = "no_answer"
    """Nothing takes a connection at its address, or nothing comes back."""
    ANOTHER = "another"
    """Whatever is there has not the node's key."""
    REFUSED = "refused"
    """The node takes whoever asks for no server of its database."""
    VERSION = "version"
    """It speaks another version of the protocol."""


class UnreachableError(Exception):
    """The message says what was found instead."""

    def __init__(self, why: Why, found: str) -> None:
        super().__init__(found)
        self.why = why


async def reach(record: NodeRecord, secret: ServerSecret) -> float:
    """Seconds from a word to the node to its answer, once it is connected: TCP, TLS with the
    certificate that the database tells of, and a greeting.

    Raises `UnreachableError`.
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

    link = Link(received, lost, most_bytes=_MOST_BYTES)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await loop.create_connection(
                lambda: link,
                host.strip("[]"),
                int(port),
                ssl=identity.trusting(record.certificate),
                server_hostname="",
            )
            said, begun = identity.token(secret, record.certificate), loop.time()
            link.send(to_node.pack(Hello(messages.VERSION, said, "", is_probe=True)))
            welcome = await answer
            took_s = loop.time() - begun
    except TimeoutError as error:
        raise UnreachableError(Why.NO_ANSWER, f"no answer in {TIMEOUT_S:g} s") from error
    except ssl.SSLError as error:
        found = "what answers there is not this node"
        raise UnreachableError(Why.ANOTHER, found) from error
    except ConnectionResetError as error:
        found = "what answers there is not this node, or has too many connections"
        raise UnreachableError(Why.ANOTHER, found) from error
    except OSError as error:
        found = error.strerror or str(error) or type(error).__name__
        raise UnreachableError(Why.NO_ANSWER, found) from error
    finally:
        link.abort()
    if welcome is None:
        raise UnreachableError(Why.REFUSED, "it ends the connection once it was greeted")
    if welcome.version != messages.VERSION:
        found = f"it speaks version {welcome.version} of the protocol, and this {messages.VERSION}"
        raise UnreachableError(Why.VERSION, found)
    return took_s
