"""Writes the table of docs/faults.md: faults of the environment, their outcome, and their tests. A
test names its faults with the marker `fault`.

`python -m tools.faults` writes the page. tests/test_fault_list.py compares it.
"""

from dataclasses import dataclass

from tools.marks import ROOT, marked, shown

PAGE = ROOT / "docs" / "faults.md"
MARKER = "fault"


@dataclass(frozen=True)
class Fault:
    name: str
    outcome: str


_RETRIED = (
    "requests that had not begun are retried, others get a 503 `worker_lost`; the next call works"
)
_ONE_WINS = "one of them succeeds, the other gets an error with the reason"

FAULTS: dict[str, Fault] = {
    "a1": Fault("a replica is killed during a batch", _RETRIED),
    "a2": Fault(
        "a replica is killed during a stream",
        "the stream ends with an event `error`; runs of agents repeat the step",
    ),
    "a3": Fault(
        "a replica is killed while it loads",
        "an answer, or a 503 with `Retry-After`; the next call works",
    ),
    "a4": Fault(
        "a replica runs out of memory",
        "a 503; the deployment shows the reason, and its next start is delayed",
    ),
    "a5": Fault("a replica hangs (SIGSTOP)", "it is replaced, and its requests are retried"),
    "b1": Fault(
        "the server is killed during an upload",
        "complete parts are kept, and the client continues after them",
    ),
    "b2": Fault(
        "the server is killed during the completion of an upload",
        "the upload is open or ready afterwards, and can be completed",
    ),
    "b3": Fault(
        "the server is killed during a video job",
        "the job is repeated, and ends exactly once",
    ),
    "b4": Fault(
        "the server is killed during a run of an agent",
        "the run continues; events that a client has seen stay valid",
    ),
    "b5": Fault(
        "the server is killed during a write to the ledger",
        "the entry is written completely or not at all; nothing is charged twice",
    ),
    "c1": Fault("the disk is full during an upload", "a 503; acknowledged parts are kept"),
    "c2": Fault(
        "the disk is full during the write of a result",
        "a 503, or the job is retried; partial files are deleted",
    ),
    "c6": Fault(
        "the disk is full during a load of a model",
        "the model serves; its measurements are written later",
    ),
    "c3": Fault("the database is locked", "a 503 `database_unavailable`; reads continue"),
    "c4": Fault(
        "the database is slow", "requests that need it wait; other requests are not delayed"
    ),
    "c5": Fault(
        "the database is unavailable for a while",
        "a 503 until it returns; no manual step is needed",
    ),
    "d1": Fault("clients that send slowly", "a 408 after a time limit, then a closed connection"),
    "d2": Fault("clients that never read", "the connection is closed, and its work is cancelled"),
    "d3": Fault(
        "clients that disconnect at any stage",
        "their work is cancelled, and all its resources are freed",
    ),
    "d4": Fault(
        "clients that send requests without reading answers",
        "answers in order; the number of waiting requests is limited",
    ),
    "e1": Fault("two uploads of one artifact at once", _ONE_WINS),
    "e2": Fault("an artifact or deployment is deleted while it is deployed", _ONE_WINS),
    "e3": Fault("a deployment of an artifact that is being uploaded", _ONE_WINS),
    "e4": Fault("a run is deleted while it writes events", "all its data is deleted"),
    "e5": Fault(
        "a key is revoked during a stream",
        "the stream continues to its end; the next request is refused",
    ),
    "f1": Fault(
        "clocks jump by up to a day, forward or back",
        "memory is charged for the time it was held; storage is never charged twice",
    ),
    "f2": Fault("two servers on one database", "each job runs once and is charged once"),
    "g1": Fault(
        "the object store fails for a moment",
        "its requests are retried; clients see no error",
    ),
    "g2": Fault(
        "the object store is unavailable or answers only with errors",
        "a 503 `store_unavailable`; acknowledged data is kept, and deletions are done later",
    ),
    "g3": Fault(
        "the object store returns changed bytes",
        "the digest shows it, and they are never loaded",
    ),
    "g4": Fault(
        "a server is killed during an upload to a bucket",
        "another server continues after the acknowledged parts",
    ),
    "g5": Fault(
        "the object store is slow while nodes of a fleet load from it",
        "calls of that model wait and are answered; calls of other models are not delayed",
    ),
    "n1": Fault(
        "a node host is killed",
        "its replicas end; requests in progress get a 503 or an event `error`, and the next call "
        "uses another node",
    ),
    "n2": Fault("a replica on a node is killed", _RETRIED),
    "n3": Fault(
        "a gateway is killed",
        "its work on nodes is cancelled; models stay loaded for other gateways",
    ),
    "n4": Fault(
        "the database of a fleet is unavailable for a while",
        "replicas keep running and answer keys that are cached as valid; none is restarted",
    ),
    "n5": Fault(
        "a node host hangs (SIGSTOP)",
        "it is disconnected after ten seconds, and another node is used",
    ),
    "n6": Fault(
        "the network between a gateway and a node fails",
        "that gateway uses another node; other gateways still use this one",
    ),
    "n7": Fault(
        "a node host is asked to stop",
        "it finishes its requests, other nodes get new ones, and no call fails",
    ),
    "n8": Fault(
        "no node is connected", "a 503 `no_node`; waiting calls are answered by a new node"
    ),
    "n9": Fault(
        "a node cannot store a model's files, because its disk is full or broken",
        "a 503; the next call loads the model on another node",
    ),
    "n10": Fault(
        "a deployment is deleted while its node is unreachable",
        "after its return, the node stops replicas without a lease, and deletes their files later",
    ),
    "n11": Fault(
        "Ray's head is lost and restarts without state",
        "replicas keep running; new leases wait for the head",
    ),
    "n12": Fault(
        "the process that places leases with Ray is killed, or loses the database",
        "it is restarted, and continues with the state in the database",
    ),
    "n13": Fault("two processes try to place leases", "only one of them places leases"),
    "n14": Fault(
        "a machine of the Ray cluster is lost, or its node host is killed",
        "its models are loaded elsewhere; it joins the fleet again after its return",
    ),
    "n15": Fault(
        "a node host is killed while it loads a model",
        "calls that waited for it are answered by another node; after a second such loss they get "
        "a 503 `worker_lost`",
    ),
    "n16": Fault(
        "a gateway is killed during a stream, an upload, videos and a run of an agent",
        "the stream is cut; another gateway continues the rest, and all is charged once",
    ),
}


def page() -> str:
    """Returns the expected text of docs/faults.md."""
    tried = marked(MARKER)
    rows = [
        f"| {mark} | {fault.name} | {fault.outcome} | {shown(tried.get(mark, []))} |"
        for mark, fault in FAULTS.items()
    ]
    return "\n".join(
        [
            "# Faults to survive",
            "",
            "This page lists faults of the environment, their outcome, and their tests. The tests",
            "are marked `fault(mark)`, and `pytest -m fault` runs them. Random tests use a seed,",
            "which Hypothesis prints. `STOKER_TEST_EXAMPLES=20` runs 20 times as many examples.",
            "`python -m tools.faults` writes this page.",
            "",
            "| # | fault | outcome | tests |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
