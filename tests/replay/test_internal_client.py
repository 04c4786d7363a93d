"""The server's own calls of one version run the same operations as HTTP requests."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.base.errors import (
    EndpointNotSupportedError,
    InferenceError,
    InsufficientCreditsError,
    InvalidRequestError,
    ModelNotFoundError,
)
from stoker.inference.calls import Calls
from stoker.inference.registry import OPERATIONS
from stoker.models.tasks.registry import PIPELINES, VIDEO, endpoints
from stoker.registry.deployments.directory import Directory, DirectoryEntry, VersionShare
from stoker.runtime.interface import Call
from stoker.store import db
from stoker.wire.generation_request import Generation
from stoker.workloads.evaluation.replay import examples
from stoker.workloads.evaluation.replay.internal_client import InternalClient

MASKS, CHAT, SPEECH = "/v1/fill-mask", "/v1/chat/completions", "/v1/audio/speech"
MESSAGES = [{"role": "user", "content": "x" * 300_000}]
"""Larger than a body that is parsed in one step."""


class Runtime:
    """Stand-in for a runtime. Records versions and calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Call | Generation]] = []
        self.wait_s: list[float] = []
        self.parts: list[bytes | Exception] = [b"first", b"last"]
        self.read: list[bytes] = []
        self.is_closed = False

    async def call(self, version_id: str, call: Call | Generation, **options: Any) -> bytes:
        self.asked.append((version_id, call))
        self.wait_s.append(options["wait_s"])
        return b'{"answer":1}'

    async def stream(
        self, version_id: str, call: Call | Generation, **_: Any
    ) -> AsyncGenerator[bytes]:
        self.asked.append((version_id, call))
        try:
            for part in self.parts:
                if isinstance(part, Exception):
                    raise part
                self.read.append(part)
                yield part
        finally:
            self.is_closed = True


class Credits:
    is_used_up = False

    def check(self, account_id: str) -> None:
        assert account_id == "acct_1"
        if self.is_used_up:
            raise InsufficientCreditsError


class World:
    def __init__(self, pipeline: str) -> None:
        self.runtime, self.credits, self.mirrored = Runtime(), Credits(), list[Any]()
        self.directory = Directory()
        entry = DirectoryEntry(
            deployment_id="dep_1",
            version_id="ver_1",
            account_id="acct_1",
            model="m",
            pipeline=pipeline,
            readiness="cold",
            source="upl_1",
            created_at=db.now(),
            callable_versions=frozenset({"ver_1", "ver_2"}),
            shares=(VersionShare("ver_1", 100),),
            mirrors=(VersionShare("ver_3", 100),),
        )
        self.directory.put(entry)
        unused: dict[str, Any] = dict.fromkeys(
            ("quotas", "database", "blobs", "secret", "media", "inspectors")
        )
        parts: dict[str, Any] = {
            **unused,
            "media": Collector(),
            "runtime": self.runtime,
            "credits": self.credits,
            "mirror": lambda *call, **_: self.mirrored.append(call),
        }
        calls = Calls(settings=Settings(), directory=self.directory, **parts)
        self.client = InternalClient(calls, entry, "ver_2")


class Collector:
    async def collect(self, request: Any) -> None:
        """Does nothing: the requests have no media."""


async def test_a_task_runs_on_the_named_version_only() -> None:
    world = World("fill-mask")
    # A change of versions holds the deployment's own calls.
    world.directory.hold("dep_1")
    body = world.client.body({"inputs": "a [MASK]", "top_k": 2})
    assert await world.client.answer(MASKS, body) == b'{"answer":1}'
    ((version, call),) = world.runtime.asked
    assert version == "ver_2"
    assert isinstance(call, Call)
    assert (call.task, call.items, call.parameters["top_k"]) == ("fill-mask", ["a [MASK]"], 2)
    assert world.runtime.wait_s == [Settings().wait_max_s]
    assert world.mirrored == []


async def test_generated_text_is_answered_whole() -> None:
    world = World("text-generation")
    body = world.client.body({"messages": MESSAGES})
    assert await world.client.answer(CHAT, body) == b'{"answer":1}'
    ((version, call),) = world.runtime.asked
    assert version == "ver_2"
    assert isinstance(call, Generation)
    assert call.answer["model"] == "m"


async def test_a_streamed_answer_is_read_to_its_end() -> None:
    world = World("text-to-speech")
    assert await world.client.answer(SPEECH, world.client.body({"input": "hello"})) == b""
    assert world.runtime.read == [b"first", b"last"]
    assert world.runtime.is_closed


async def test_a_streamed_answer_may_fail_late() -> None:
    world = World("text-to-speech")
    world.runtime.parts = [b"first", InferenceError("out of memory", code="inference_failed")]
    with pytest.raises(InferenceError, match="out of memory"):
        await world.client.answer(SPEECH, world.client.body({"input": "hello"}))
    assert world.runtime.is_closed


async def test_errors_are_those_of_a_client() -> None:
    world = World("fill-mask")
    with pytest.raises(InvalidRequestError) as invalid:
        await world.client.answer(MASKS, world.client.body({"inputs": "a", "top_k": "x"}))
    assert invalid.value.param == "top_k"
    with pytest.raises(EndpointNotSupportedError):
        await world.client.answer(CHAT, world.client.body({"messages": MESSAGES}))
    with pytest.raises(ModelNotFoundError):
        await world.client.answer(MASKS, b'{"inputs": "a", "model": "other"}')
    world.credits.is_used_up = True
    with pytest.raises(InsufficientCreditsError):
        await world.client.answer(MASKS, b"not even JSON")
    assert world.runtime.asked == []


def test_every_endpoint_of_a_pipeline_is_an_operation() -> None:
    paths = {path for pipeline in PIPELINES for path in endpoints(pipeline)}
    assert paths - OPERATIONS.keys() == {"/v1/videos"}
    for pipeline in PIPELINES.keys() - set(VIDEO):
        assert pipeline in OPERATIONS[examples.path_of(pipeline)].pipelines


def test_every_example_is_valid() -> None:
    for operation in OPERATIONS.values():
        operation.request.model_validate(operation.example)
