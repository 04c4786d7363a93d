"""Writes the table of docs/faults.md: faults around a server, their outcome, and the tests that try
them. A test names its faults with the marker `fault`.

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


_RETRIED = "what was not begun is retried, what was gets a 503 `worker_lost`; the next call works"
_ONE_WINS = "one of them wins, the other is told so"

FAULTS: dict[str, Fault] = {
    "a1": Fault("a replica is killed in the middle of a batch", _RETRIED),
    "a2": Fault(
        "a replica is killed in the middle of a stream",
        "the stream ends with an event `error`; runs of agents do the step anew",
    ),
    "a3": Fault(
        "a replica is killed while it loads", "told when to come again; the next call works"
    ),
    "a4": Fault(
        "a replica has no more memory",
        "a 503; the deployment says so, and is not started again at once",
    ),
    "a5": Fault("a replica stands still (SIGSTOP)", "it is replaced, and its requests are retried"),
    "b1": Fault(
        "the server is killed in the middle of an upload",
        "whole parts stay, and the client goes on behind them",
    ),
    "b2": Fault("… of completing one", "it is open or ready afterwards, and can be completed"),
    "b3": Fault("… of a job that makes a video", "the job is done anew, and ends once"),
    "b4": Fault("… of a run of an agent", "the run goes on; nothing that was seen is unsaid"),
    "b5": Fault("… of writing to the ledger", "all of it or nothing; nothing is charged twice"),
    "c1": Fault("the disk is full while files are uploaded", "a 503; what was taken stays"),
    "c2": Fault("… while a result is written", "a 503, or the job is tried again; no byte is left"),
    "c6": Fault(
        "… while a model is loaded",
        "it serves; what was measured is written later",
    ),
    "c3": Fault("the database is locked", "a 503 `database_unavailable`; readers go on"),
    "c4": Fault("the database is slow", "those who need it wait, nobody else does"),
    "c5": Fault("the database goes and comes back", "a 503 until then; nothing has to be done"),
    "d1": Fault("clients that send slowly", "told so after a time, and cut off"),
    "d2": Fault("clients that never read", "cut off, and their work ends"),
    "d3": Fault("clients that go away at every stage", "their work ends; nothing is left of it"),
    "d4": Fault("clients that send requests without reading answers", "answered in order; bounded"),
    "e1": Fault("two uploads of one artifact at once", _ONE_WINS),
    "e2": Fault("an artifact or deployment is deleted while it is deployed", _ONE_WINS),
    "e3": Fault("a deployment of an artifact that is being uploaded", _ONE_WINS),
    "e4": Fault("a run is deleted while it writes events", "nothing of it is left"),
    "e5": Fault(
        "a key is revoked in the middle of a stream",
        "what has begun ends where it began; the next request is refused",
    ),
    "f1": Fault(
        "clocks jump by up to a day, either way",
        "memory costs what was held; storage nothing twice",
    ),
    "f2": Fault("two servers on one database", "each thing is done once, and charged once"),
    "g1": Fault("the object store fails for a moment", "it is asked again; nobody notices"),
    "g2": Fault(
        "the object store is away, or answers nothing but errors",
        "a 503 `store_unavailable`; what was acknowledged stays, and what was deleted goes later",
    ),
    "g3": Fault(
        "the object store gives other bytes than it was given",
        "they are told by their digest, and never loaded",
    ),
    "g4": Fault(
        "a server is killed in the middle of an upload to a bucket",
        "another server goes on behind what was acknowledged",
    ),
    "g5": Fault(
        "the object store is slow while nodes of a fleet load from it",
        "who waits for the model is answered in the end; nobody else waits",
    ),
    "n1": Fault(
        "a node host is killed",
        "its replicas end with it; what was under way gets a 503 or an event `error`, and the next "
        "call another node",
    ),
    "n2": Fault("a replica on a node is killed", _RETRIED),
    "n3": Fault("a gateway is killed", "its work ends on the nodes; models stay for the others"),
    "n4": Fault(
        "the database of a fleet goes and comes back",
        "what runs stays, and is called by keys that are still trusted; nothing is begun anew",
    ),
    "n5": Fault(
        "a node host stands still (SIGSTOP)",
        "it is cut off after ten seconds, and another node called",
    ),
    "n6": Fault(
        "the network between a gateway and a node is cut",
        "that gateway calls another node, the others go on with this one",
    ),
    "n7": Fault(
        "a node host is asked to end",
        "it answers what it has, others take what comes, and no call fails",
    ),
    "n8": Fault("there is no node", "a 503 `no_node`; who waits is answered when one comes"),
    "n9": Fault(
        "a node cannot place a model's files, as its disk is full or broken",
        "a 503; the next call has it loaded on another node",
    ),
    "n10": Fault(
        "a deployment is deleted while its node cannot be reached",
        "once it is back, the node ends what it has no lease for, and forgets it by and by",
    ),
    "n11": Fault(
        "Ray's head is lost, and comes back knowing nothing",
        "what runs goes on where it is; new leases wait for the head",
    ),
    "n12": Fault(
        "who places leases by Ray is killed, or cut off from the database",
        "it is started again, and goes on with what the database says",
    ),
    "n13": Fault("two processes think that they place leases", "one of them does nothing"),
    "n14": Fault(
        "a machine of Ray's is lost, or the node host on it is killed",
        "its models are loaded elsewhere, and it is one of the fleet again when it is back",
    ),
    "n15": Fault(
        "a node host is killed while it loads a model",
        "calls that only waited there are answered by another node; after a second such loss they "
        "get a 503 `worker_lost`",
    ),
    "n16": Fault(
        "a gateway is killed with a stream, an upload, videos and a run of an agent under way",
        "the stream breaks off, all else is taken over by another gateway, and charged once",
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
            "What goes wrong around a server, what comes of it, and the tests that try it: those",
            "marked `fault(mark)`, all of which `pytest -m fault` runs. Those with chance in them",
            "take a seed (Hypothesis prints its own), and `STOKER_TEST_EXAMPLES=20` has them try",
            "20 times as long. `python -m tools.faults` writes this.",
            "",
            "| # | fault | what comes of it | tests |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
