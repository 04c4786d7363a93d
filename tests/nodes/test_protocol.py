"""A gateway and a node of different releases understand each other, or say why not."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args

import msgspec
import pytest

from stoker.base.errors import RateLimitError
from stoker.base.fairness import Tier
from stoker.runtime.interface import Call
from stoker.runtime.listening import Served
from stoker.runtime.nodes import messages
from stoker.runtime.nodes.messages import (
    AnswerPart,
    CallAnswer,
    CallProgress,
    CallRefused,
    CallReport,
    CallRequest,
    Changed,
    Done,
    Drop,
    End,
    Failed,
    FromGateway,
    FromNode,
    Hello,
    Lines,
    ModelLoaded,
    Observed,
    ProtocolMismatchError,
    Put,
    Stop,
    Tail,
    Waits,
    Welcome,
    agreed_version,
    to_gateway,
    to_node,
)
from stoker.runtime.observed import (
    DeploymentStats,
    DeviceStats,
    MachineStats,
    Reason,
    ReplicaStats,
    Status,
    WaitingForMemory,
)
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.errors import ErrorFields
from stoker.wire.generation_request import (
    AdapterName,
    Conversation,
    Cut,
    Generation,
    Guide,
    Sampling,
    Tools,
)

SPEC = DeploymentSpec(id="ver_1", account_id="a", model="m", pipeline="p", source="s")
CALL = Call(
    task="t",
    items=["a"],
    parameters={},
    single=True,
    adapter=AdapterName(folder="f", deployment_id="d", model="m"),
)
GENERATION = Generation(
    api="chat",
    prompts=[Conversation(messages=[], tools=Tools(functions=[]))],
    sampling=Sampling(max_tokens=4),
    guide=Guide(kind="regex", field="f"),
    cut=Cut(tokens=3),
)
ASK: dict[str, Any] = {
    "id": 1,
    "spec_id": "s",
    "generation": 1,
    "wait_s": 1,
    "timeout_s": 1,
    "account": "a",
    "key": "k",
}
REPLICA = ReplicaStats(
    id="r",
    status=Status.READY,
    pid=1,
    outstanding=0,
    memory_bytes=1,
    progress=1,
    engine="torch",
)
STATS = DeploymentStats(status=Status.READY, reason=Reason.LOADED, message="", replicas=[REPLICA])
MACHINE = MachineStats(
    waiting=[
        WaitingForMemory(deployment_id="d", account_id="a", model="m", memory_bytes=1, reason="")
    ],
    devices=[DeviceStats(index=0, name="", total_bytes=1, budget_bytes=1, held_bytes=1)],
    sandbox_openings=["a"],
)
SERVED = Served(
    account_id="a",
    deployment_id="d",
    model="m",
    outcome="ok",
    waited_s=0,
    seconds=1,
    counts={"t": 1},
)


def test_a_call_of_the_earlier_release_has_the_default_tier() -> None:
    fields = msgspec.to_builtins(CallRequest(**ASK, call=CALL))
    assert "tier" not in fields
    assert msgspec.convert(fields, CallRequest).tier is Tier.DEFAULT


def test_the_tier_of_a_call_is_sent() -> None:
    ask = CallRequest(**ASK, call=CALL, tier=Tier.FLEX)
    assert messages.to_node.unpack(messages.to_node.pack(ask)) == ask


GATEWAY: list[Any] = [
    messages.hello("token", "srv_1"),
    Put(SPEC, running=True, generation=1, is_change=True),
    Drop(1, "s"),
    CallRequest(**ASK, call=CALL),
    CallRequest(**ASK, generation_request=GENERATION),
    Stop(1),
    Tail(1, "d", 2),
]
NODE: list[Any] = [
    messages.welcome("node_1"),
    CallAnswer(1),
    AnswerPart(1),
    End(1),
    Failed(1, ErrorFields.of(RateLimitError("Full.", code="queue_full"))),
    CallRefused(1, 2),
    Waits(1),
    CallProgress(1, 0.5),
    CallReport(1, SERVED),
    Done(1),
    Lines(1, ["a"]),
    Changed("s", Status.READY, Reason.LOADED, ""),
    ModelLoaded("s", 1.0),
    Observed({"s": STATS, "t": None}, MACHINE, ["s"], is_ready=True),
]


def of_next_release(value: Any) -> Any:
    """Returns a message as a newer release would send it: each record has one more field."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return {**tag, "hue": {"new": [1]}, **of_next_release(fields)}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"hue": {"new": [1]}, **of_next_release(fields)}
    if isinstance(value, Mapping):
        return {name: of_next_release(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [of_next_release(part) for part in value]
    return value.value if isinstance(value, Enum) else value


class TestFields:
    @pytest.mark.parametrize("message", GATEWAY, ids=lambda one: type(one).__name__)
    def test_a_node_ignores_unknown_ones(self, message: Any) -> None:
        sent = msgspec.msgpack.encode(of_next_release(message))
        assert to_node.unpack([sent]) == message

    @pytest.mark.parametrize("message", NODE, ids=lambda one: type(one).__name__)
    def test_a_gateway_ignores_unknown_ones(self, message: Any) -> None:
        sent = msgspec.msgpack.encode(of_next_release(message))
        assert to_gateway.unpack([sent]) == message

    def test_all_messages_are_here(self) -> None:
        assert {type(one) for one in GATEWAY} == {*get_args(FromGateway)}
        assert {type(one) for one in NODE} == {*get_args(FromNode)}

    def test_an_unknown_reason_is_kept(self) -> None:
        sent = msgspec.msgpack.encode(
            {"type": "changed", "spec_id": "s", "status": "idle", "reason": "hue", "message": ""}
        )
        changed = to_gateway.unpack([sent])
        assert isinstance(changed, Changed)
        assert (changed.reason, str(changed.reason)) == ("hue", "hue")
        assert isinstance(changed.reason, Reason)
        assert "hue" not in [*Reason]
        with pytest.raises(ValueError, match="1"):
            Reason(1)


@pytest.fixture
def two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this release accept the versions 5 and 6."""
    monkeypatch.setattr(messages, "VERSION", 6)
    monkeypatch.setattr(messages, "OLDEST_VERSION", 5)


@pytest.mark.usefixtures("two_versions")
class TestVersions:
    @pytest.mark.parametrize(
        ("newest", "oldest", "agreed"), [(5, 4, 5), (5, 0, 5), (6, 5, 6), (7, 6, 6), (9, 5, 6)]
    )
    def test_the_newest_that_both_have(self, newest: int, oldest: int, agreed: int) -> None:
        assert agreed_version(Hello(newest, "", "", oldest=oldest)) == agreed
        assert agreed_version(Welcome(newest, "n", oldest)) == agreed

    @pytest.mark.parametrize(
        ("newest", "oldest", "says"),
        [
            (4, 3, "it speaks versions 3 to 4 of the protocol, and this release versions 5 to 6"),
            (4, 0, "it speaks version 4 of the protocol, and this release versions 5 to 6"),
            (8, 7, "it speaks versions 7 to 8 of the protocol, and this release versions 5 to 6"),
        ],
    )
    def test_none_in_common(self, newest: int, oldest: int, says: str) -> None:
        with pytest.raises(ProtocolMismatchError) as caught:
            agreed_version(Hello(newest, "", "", oldest=oldest))
        assert str(caught.value) == says
