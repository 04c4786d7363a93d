"""How the pages' shell blocks run against the demo or a server of their own.

The blocks of a page run in one shell, in their order. Placeholders of a page are replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tests.demo.test_demo import WEATHER

NEWEST = {"acct_…": "$(newest accounts)"}
OPERATOR = "STOKER_API_KEY=$(cat .data/operator-key)"
ACCOUNT = f"$({OPERATOR} newest accounts)"
ARTIFACT = {"art_…": "$(newest artifacts)"}
MODEL = {"path/to/model": "$MODELS/tiny-sentiment"}
NEW_KEY = "$(stoker keys create --deployment my-model --json | grep -o 'key_[0-9a-z]*' | head -1)"
FOLLOW = {"logs -f my-model": "logs my-model"}
"""`-f` waits for Ctrl-C."""
VAR = {"/var/lib/": "var/"}
LORA = "path/to/lora"


class Key(Enum):
    """Whose key a page's commands use."""

    DEMO = "the demo's account"
    OWN = "a new account on the demo's server"
    OPERATOR = "an operator of the demo's server"
    SERVER = "the first account of a server that the page starts"


@dataclass(frozen=True)
class Plan:
    """How a page's shell blocks run."""

    key: Key = Key.OWN
    before: str = ""
    """Script that runs first, in the same shell."""
    replace: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str = ""
    shown: tuple[str, ...] = ()
    """Parts of the output, in their order."""
    after: str = ""
    """Script that runs last."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def pushed(model: str, name: str) -> str:
    """Returns the script that deploys a model of the demo under another name."""
    return f"stoker artifacts push $MODELS/{model} --name {name} --deploy {name} >/dev/null\n"


SENTIMENT, NER = pushed("tiny-sentiment", "my-model"), pushed("tiny-ner", "tagger")
NAMED = ("tiny-digits", "tiny-vqa", "tiny-clip", "tiny-transcriber", "tiny-chat")
RESTORED = "$(grep -o 'http:[^\"]*' restored/server.json)"
SERVE = "stoker serve\nexport STOKER_API_KEY=$(cat .data/account-key)\n"

PLANS: Mapping[str, Plan] = {
    "deploy/package.md": Plan(
        Key.DEMO,
        replace={
            **MODEL,
            "my-model": "packaged",
            "stoker open ": "stoker open --no-browser ",
        },
        after="stoker deployments delete packaged --yes",
        shown=("negative", "label", "http://127.0.0.1"),
    ),
    "docs/guide/accounts.md": Plan(
        Key.OPERATOR,
        replace={**NEWEST, "delete $(newest accounts)": "delete $(newest accounts) --yes"},
        shown=("research", "sk-", '"data":[]'),
    ),
    "docs/guide/adapters.md": Plan(
        before=pushed("tiny-chat", "chat"),
        replace={LORA: "$LORA"},
        shown=("ready",),
    ),
    "docs/guide/agents.md": Plan(
        Key.OWN,
        before=pushed("tiny-chat", "tiny-chat"),
        stdin=WEATHER,
        shown=("It is 21 degrees and sunny in Paris.",),
    ),
    "docs/guide/artifacts.md": Plan(replace=MODEL, shown=("ner", "text-classification", "ready")),
    "docs/guide/backup.md": Plan(
        Key.SERVER,
        before=SERVE + SENTIMENT,
        replace={"stoker serve --data": "SERVER_PORT=0 stoker serve --data"},
        after=f'curl {RESTORED}/v1/models -H "Authorization: Bearer $STOKER_API_KEY"',
        shown=('"id":"my-model"',),
    ),
    "docs/guide/batches.md": Plan(
        before=pushed("tiny-encoder", "my-encoder"),
        after="wc -l vectors.jsonl",
        shown=("2 of 2 completed", "/v1/embeddings", "2 vectors.jsonl"),
    ),
    "docs/guide/browsers.md": Plan(Key.SERVER),
    "docs/guide/calling.md": Plan(Key.DEMO, shown=("B-PER", '"word":"Par"', "B-PER")),
    "docs/guide/chat.md": Plan(
        Key.DEMO,
        shown=("The capital of France is Paris.", "blue", 'data: {"id":"chatcmpl', '" capital"'),
    ),
    "docs/guide/coding-agents.md": Plan(
        Key.DEMO,
        shown=("export ANTHROPIC_MODEL=tiny-chat", "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=1024"),
    ),
    "docs/guide/command-line.md": Plan(
        before="".join(pushed(name, name) for name in NAMED)
        + SENTIMENT
        + pushed("tiny-ner", "my-ner")
        + "stoker agents create weather tiny-chat >/dev/null\n",
        replace={
            "key_…": NEW_KEY,
            **FOLLOW,
            "--data-dir /var/lib/stoker ": "--data-dir .data ",
            "stoker login --base-url https://models.example": "#",
            "stoker open ": "stoker open --no-browser ",
            "stoker top ": "stoker top --json ",
            "stoker cluster status": f"{OPERATOR} stoker cluster status",
        },
        # Bash replaces itself by the last command, which then finds no shell to extend.
        after=":",
        shown=("7", "red", "a red circle", "seven three one"),
    ),
    "docs/guide/service-tiers.md": Plan(
        Key.DEMO,
        replace={"key_…": NEW_KEY.replace("my-model", "tiny-chat")},
        shown=('"service_tier":"flex"',),
    ),
    "docs/guide/tei-and-vllm.md": Plan(
        Key.DEMO, shown=("[[", '[{"index":1,', '"count":', '"token_strs":["<|im_start|>"')
    ),
    "docs/guide/files.md": Plan(shown=("requests.jsonl", "batch")),
    "docs/guide/console.md": Plan(
        Key.DEMO,
        replace={"stoker open  ": "stoker open --no-browser  "},
        shown=("http://127.0.0.1",),
    ),
    "docs/guide/deployments.md": Plan(
        before="stoker artifacts push $MODELS/tiny-ner >/dev/null\n",
        replace={
            "tagger art_…": "tagger $(newest artifacts)",
            '"model": "tagger", "artifact_id": "art_…"': (
                '"model": "second", "artifact_id": "\'$(newest artifacts)\'"'
            ),
        },
        shown=("tagger", "B-PER", '"model":"second"'),
    ),
    "docs/guide/embeddings.md": Plan(
        before=pushed("tiny-encoder", "my-encoder") + pushed("tiny-reranker", "my-ranker"),
        shown=('"object":"embedding"', "[", '"index":1,', '"index":0,'),
    ),
    "docs/guide/engines.md": Plan(before=NER, shown=("openvino", "bfloat16")),
    "docs/guide/events.md": Plan(
        Key.DEMO,
        replace={
            "curl -N http://127.0.0.1:8000/v1/events": "timeout 3 curl -N http://127.0.0.1:8000/v1/events",
            '$STOKER_API_KEY"\n': '$STOKER_API_KEY" || [ $? = 124 ]\n',
            "stoker top ": "stoker top --json ",
        },
        shown=("event: ", "data: ", '"deployments"'),
    ),
    "docs/guide/hub-imports.md": Plan(
        env={"HF_TOKEN": "hf_token"},
        replace={
            "@revision": "@main",
            "art_…": "$(stoker deployments show my-model --json | grep -o 'art_[a-z0-9]*')",
        },
        shown=("org/name", "ready", "my-model", "ready", "org/private", "org/name-GGUF"),
    ),
    "docs/guide/images.md": Plan(
        replace={"path/to/pipeline": "$MODELS/tiny-draw"}, shown=("ready", "circle.png")
    ),
    "docs/guide/keys.md": Plan(before=NER, shown=("sk-",)),
    "docs/guide/limits.md": Plan(Key.SERVER),
    "docs/guide/logs.md": Plan(
        Key.SERVER,
        replace={
            "stoker serve 2> server.log\n": SERVE + SENTIMENT + "stoker call my-model A\n",
            **FOLLOW,
        },
        shown=("label",),
    ),
    "docs/guide/memory.md": Plan(
        Key.SERVER,
        replace={
            "stoker serve\n": SERVE + "export STOKER_API_KEY=$(cat .data/operator-key)\n",
            "stoker top ": "stoker top --json ",
        },
        shown=("17.2 GB", '"budget_bytes":17179869184'),
    ),
    "docs/guide/model-files.md": Plan(
        replace={**MODEL, **ARTIFACT}, shown=("text-classification", "engines", "wall: ")
    ),
    "docs/guide/operation.md": Plan(
        Key.SERVER,
        replace={**MODEL, **VAR},
        shown=("wall: ", "ready", "label"),
    ),
    "docs/guide/quotas.md": Plan(
        replace={"stoker accounts limit acct_…": f"{OPERATOR} stoker accounts limit {ACCOUNT}"},
        shown=("deployments", "50"),
    ),
    "docs/guide/responses.md": Plan(Key.DEMO, shown=("The capital of France is Paris.",)),
    "docs/guide/speech.md": Plan(Key.DEMO, after='[ "$(wc -c < speech.mp3)" -gt 1000 ]'),
    "docs/guide/structured-output.md": Plan(Key.DEMO, shown=('{\\"city\\":',)),
    "docs/guide/tool-calls.md": Plan(Key.DEMO, shown=('"name":"get_weather"', "Paris")),
    "docs/guide/traces.md": Plan(
        Key.SERVER, replace={"http://collector:4318": "http://127.0.0.1:9"}
    ),
    "docs/guide/traffic.md": Plan(
        before=SENTIMENT + "stoker versions add my-model --dtype float32 >/dev/null\n",
        shown=("compared ", "differ"),
    ),
    "docs/guide/transcription.md": Plan(
        before=pushed("tiny-transcriber", "my-whisper")
        + "cp stoker/demo/media/seven-three-one.wav talk.mp4\n",
        shown=("00:00:00,080 --> ", "seven three one"),
    ),
    "docs/guide/troubleshooting.md": Plan(before=SENTIMENT, shown=("wall: ", '"status":"ok"')),
    "docs/guide/usage.md": Plan(
        Key.OPERATOR,
        before="export STOKER_ACCOUNT=$(newest accounts)\n",
        replace=NEWEST,
        shown=("credits",),
    ),
    "docs/guide/videos.md": Plan(Key.DEMO, shown=("completed", "a red circle moves to the right")),
    "docs/security.md": Plan(Key.DEMO, shown=("wall: files", "wall: network")),
}
"""Plans of pages."""
