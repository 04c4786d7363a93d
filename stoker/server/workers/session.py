"""One call of a model in a worker process: the operations' code, with answers of the server."""

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing

from stoker.base.config import Settings
from stoker.base.errors import StokerError
from stoker.base.fairness import Party
from stoker.inference.calls import Calls, check_serves
from stoker.inference.session import VERSION, CallSession, ModelBody
from stoker.media.collect import Request as MediaRequest
from stoker.registry.deployments import traffic
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import KEEP_ALIVE, Call
from stoker.runtime.packed_calls import frames_of
from stoker.server.workers.heads import CallHead
from stoker.server.workers.messages import CallModel, ErrorReply, Hint, StreamStart, WholeReply
from stoker.server.workers.owner import HandOverError, OutdatedError, Owner
from stoker.wire.framing import Frame
from stoker.wire.generation_request import Generation


class WorkerSession(CallSession):
    """Session whose calls the server runs. It checks key, limits, credit and deployment of each."""

    def __init__(
        self, owner: Owner, settings: Settings, head: CallHead, connection: int, request_id: str
    ) -> None:
        self.version_id = self.tier = None
        self._added_headers = {}
        self.counted: Mapping[str, str] | None = None
        """Headers of the key's limits, after the server has counted the request."""
        self._owner = owner
        self._settings = settings
        self._head = head
        self._connection = connection
        self._request_id = request_id
        self._model: str | None = None
        self._user = None
        self._number = 0
        self._was_known = False
        """True if this worker knew the deployment before the request."""

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def calls(self) -> Calls:  # type: ignore[override]
        # The answer needs the database or the secret, which only the server has.
        raise HandOverError

    def add_header(self, name: str, value: str) -> None:
        raise HandOverError

    def base_url(self) -> str:  # type: ignore[override]
        raise HandOverError

    async def target(self, body: ModelBody, pipelines: Collection[str]) -> DirectoryEntry:
        if getattr(body, "response_format", None) == "url":
            # The answer has links to files, which only the server stores.
            raise HandOverError
        fields = vars(body)
        if fields.get("service_tier") is not None or fields.get("priority") is not None:
            # Only the server knows which tiers the key may use.
            raise HandOverError
        self._user = getattr(body, "user", None)
        self._model = body.model
        self._was_known = self._owner.knows(self._head.caller, body.model)
        self._number, entry = await self._owner.find(self._head.caller, body.model)
        check_serves(entry, pipelines)
        return entry

    def forget_hint(self) -> bool:
        """Forgets the deployment, which may have changed. Returns False if this request has looked
        it up itself, or if the server has counted the request.
        """
        was_known, self._was_known = self._was_known, False
        if not was_known or self.counted is not None:
            return False
        self._owner.forget_model(self._head.caller, self._model)
        return True

    async def collect(self, body: MediaRequest) -> None:
        if any(media.content is None for _, media in body.media()):
            raise HandOverError

    async def run(self, entry: DirectoryEntry, call: Call | Generation) -> bytes:
        message, frames = self._message(entry, call)
        reply, content = await self._owner.ask(message, *frames)
        if isinstance(reply, WholeReply):
            self.counted, self.version_id = reply.headers, reply.version_id
            return content
        raise self._error(reply if isinstance(reply, Hint | ErrorReply) else None)

    def stream(
        self,
        entry: DirectoryEntry,
        call: Call | Generation,
        *,
        timeout_s: float | None = None,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        message, frames = self._message(
            entry, call, is_stream=True, timeout_s=timeout_s, keep_alive=keep_alive
        )
        return self._parts(message, frames)

    async def _parts(self, message: CallModel, frames: list[Frame]) -> AsyncGenerator[bytes]:
        stream = self._owner.open_stream(message, *frames)
        async with aclosing(stream.parts()) as parts:
            try:
                async for part in parts:
                    if self.counted is None and isinstance(stream.first, StreamStart):
                        self.counted = stream.first.headers
                        self.version_id = stream.first.version_id
                    yield part
            except (StokerError, OutdatedError):
                if isinstance(stream.first, Hint | ErrorReply):
                    raise self._error(stream.first) from None
                raise

    def _error(self, reply: Hint | ErrorReply | None) -> Exception:
        if isinstance(reply, ErrorReply):
            self.counted = reply.headers
            return reply.error.restored()
        if reply is None or reply.entry is None:
            return HandOverError()
        self._owner.learn(self._head.caller, self._model, reply.number, reply.entry)
        return OutdatedError()

    def _message(
        self,
        entry: DirectoryEntry,
        call: Call | Generation,
        *,
        is_stream: bool = False,
        timeout_s: float | None = None,
        keep_alive: bytes = b"",
    ) -> tuple[CallModel, list[Frame]]:
        identifier, head = self._owner.new_id(), self._head
        message = CallModel(
            id=identifier,
            connection=self._connection,
            caller=head.caller,
            request_id=self._request_id,
            model=self._model,
            entry=self._number,
            wait_s=head.wait_s,
            headers=self._version_headers(entry),
            user=self._user,
            is_stream=is_stream,
            timeout_s=timeout_s,
            keep_alive=keep_alive,
        )
        return message, [*frames_of(identifier, call, Party(key=head.caller.public_id))]

    def _version_headers(self, entry: DirectoryEntry) -> dict[str, str]:
        names = [VERSION]
        if entry.sticky.startswith(traffic.HEADER):
            names.append(entry.sticky.removeprefix(traffic.HEADER))
        headers = self._head.headers
        return {name: headers[name.lower()] for name in names if name.lower() in headers}
