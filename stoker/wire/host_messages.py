"""What the gateway and the engine host say to each other: one JSON line each."""

from typing import Literal

import msgspec

from stoker.wire.protocol import Conversion, ReplicaSpec, Trial


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    replica: ReplicaSpec


class Convert(msgspec.Struct, frozen=True, tag="convert"):
    job: Conversion


class Try(msgspec.Struct, frozen=True, tag="try"):
    job: Trial


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """Send a signal to a child that has not ended."""

    replica_id: str
    signal: int


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """Import the modelling code of an architecture, so that forks find it done."""

    name: str
    """A model type of transformers, or a pipeline's class of diffusers; from an artifact."""
    library: Literal["transformers", "diffusers"] = "transformers"


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for a `Pong`, behind whatever is being done."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Commands are still obeyed."""


class HostReady(msgspec.Struct, frozen=True, tag="host_ready"):
    """The imports are done: commands are obeyed from now on."""

    threads: int
    """Threads of the host process: more than one makes forking unsafe."""


class Preloaded(msgspec.Struct, frozen=True, tag="preloaded"):
    threads: int
    """As of `HostReady`: what was imported may have started some."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    replica_id: str
    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A child was reaped."""

    replica_id: str
    """Of a conversion or a trial, its id."""
    status: int
    """Exit code, or minus the signal's number."""


HostCommand = Fork | Convert | Try | Signal | Preload | Ping
HostEvent = HostReady | Preloaded | Forked | Exited | Pong
