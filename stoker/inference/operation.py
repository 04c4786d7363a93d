"""Operations: endpoints that run a model, as values for HTTP routes and internal callers."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from stoker.inference.session import CallSession
from stoker.media.media import MediaKind
from stoker.registry.deployments.directory import DirectoryEntry

Body = TypeVar("Body", bound=BaseModel)

JSON = "application/json"
EVENTS = "text/event-stream"


class WholeAnswer(NamedTuple):
    """An answer in one piece."""

    content: bytes
    media_type: str = JSON


class StreamedAnswer(NamedTuple):
    """An answer in parts, which the model makes while they are read. The reader closes them."""

    parts: AsyncGenerator[bytes]
    media_type: str = EVENTS


Answer = WholeAnswer | StreamedAnswer


@dataclass(frozen=True, kw_only=True)
class Endpoint(Generic[Body]):
    """Description of an endpoint that reads its body in several forms."""

    path: str
    summary: str
    request: type[Body]
    example: Mapping[str, object]
    """Example of a request body."""
    answers: Mapping[str, type[BaseModel] | None] = field(
        default_factory=dict[str, type[BaseModel] | None]
    )
    """Maps a content type of the answer to its model. None means text or a file. Empty for a task,
    whose record describes its result.
    """
    media: Mapping[str, MediaKind] = field(default_factory=dict[str, MediaKind])
    """Fields of the request that accept files in a form."""
    bare: bool = False
    """True if a body may be a bare file."""


@dataclass(frozen=True, kw_only=True)
class Operation(Endpoint[Body]):
    """An endpoint that runs a model: how a valid request becomes an answer."""

    name: str
    """Operation id in the OpenAPI document."""
    tag: str
    """Group in the OpenAPI document."""
    pipelines: Collection[str]
    """Pipelines with deployments that serve this operation."""
    answer: Callable[[CallSession, DirectoryEntry, Body], Awaitable[Answer]] = field(repr=False)
    """Returns the answer of a deployment of these pipelines to a request. Collects the request's
    media first.
    """
    aliases: tuple[str, ...] = ()
    """Other paths of the same operation, for clients of other APIs."""
    max_files: int | None = None
    """Maximum number of files in a form. None means the server's limit for lists."""
    has_media_in_json: bool = False
    """True if fields other than `media` may hold media in JSON, such as a chat's messages."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    @property
    def has_media(self) -> bool:
        """True if JSON requests may hold media."""
        return self.has_media_in_json or bool(self.media)

    async def run(self, session: CallSession, body: Any) -> Answer:
        """Returns the answer of the deployment that a request names.

        Raises the errors of `CallSession.target` and `answer`.
        """
        return await self.answer(session, await session.target(body, self.pipelines), body)
