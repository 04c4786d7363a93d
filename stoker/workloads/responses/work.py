"""Background responses: the `JobKind` of stored responses."""

from typing import Any

import msgspec

from stoker.base.errors import NotFoundError, StokerError
from stoker.base.fairness import CURRENT_CALLER, Party, Tier
from stoker.inference.calls import Calls
from stoker.inference.openai.response_calls import generation_of
from stoker.inference.openai.responses import ResponseRequest
from stoker.platform.jobs.kind import Outcome
from stoker.runtime.interface import OnProgress
from stoker.store.db import Session
from stoker.store.tables.responses import StoredResponse
from stoker.workloads.responses import content


class BackgroundResponse:
    table = StoredResponse

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def perform(self, row: StoredResponse, on_progress: OnProgress) -> bytes:
        calls, settings = self._calls, self._calls.settings
        request = content.sealer(calls.secret, row).unseal(row.request)
        tier = Tier(request["tier"])
        CURRENT_CALLER.set(Party(row.account_id, row.api_key, tier=tier))
        entry = calls.directory.find(row.deployment_id)
        if entry is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        fields: dict[str, Any] = {**request["body"], "input": request["whole_input"]}
        body = ResponseRequest.model_validate(fields)
        generation = generation_of(
            calls, entry, body, response_id=row.id, created_at=row.created_at
        )
        generation.answer["service_tier"] = tier
        await calls.media.collect(generation)
        return await calls.run(
            entry,
            msgspec.structs.replace(generation, stream=False),
            wait_s=settings.load_timeout_s,
            timeout_s=settings.job_timeout_s,
            on_progress=on_progress,
        )

    def outcome(self, row: StoredResponse, made: bytes) -> Outcome:
        sealed = content.sealer(self._calls.secret, row).seal(msgspec.json.decode(made))
        size = len(row.request) + len(sealed)
        return Outcome({"answer": sealed, "stored_bytes": size})

    async def keep(self, session: Session, row: StoredResponse, made: bytes) -> None:
        return None

    async def ended(self, session: Session, row: StoredResponse, error: StokerError | None) -> None:
        return None

    async def discard(self, made: bytes) -> None:
        return None
