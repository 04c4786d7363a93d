"""Maps the operations of the API to methods of the client."""

from collections.abc import Mapping
from dataclasses import dataclass

TASKS = "tasks"


@dataclass(frozen=True)
class ClientResource:
    group: str
    """Module of the resource's methods, parameters and responses."""
    name: str
    """Class name."""
    methods: Mapping[str, str]
    """Method name -> HTTP method and path."""
    is_extended: bool = False
    """True if stoker/client/aio/extended.py adds methods."""

    @property
    def generated_name(self) -> str:
        """Returns the name of the generated class."""
        if not self.is_extended:
            return f"Async{self.name}"
        return f"Async{self.name.removesuffix('s')}Operations"


DEPLOYMENT = "/v1/deployments/{deployment_id}"
ARTIFACT = "/v1/model-artifacts/{artifact_id}"
RUN = "/v1/agent/{agent_id}/runs/{run_id}"


def _crud(path: str, item: str, *, update: bool = True) -> dict[str, str]:
    methods = {
        "list": f"GET {path}",
        "create": f"POST {path}",
        "get": f"GET {item}",
        "update": f"PATCH {item}",
        "delete": f"DELETE {item}",
    }
    return methods if update else {k: v for k, v in methods.items() if k != "update"}


RESOURCES: Mapping[str, ClientResource] = {
    "accounts": ClientResource(
        "accounts", "Accounts", _crud("/v1/accounts", "/v1/accounts/{account_id}")
    ),
    "keys": ClientResource(
        "accounts",
        "Keys",
        {
            "list": "GET /v1/api-keys",
            "create": "POST /v1/api-keys",
            "get": "GET /v1/api-keys/{key_id}",
            "update": "PATCH /v1/api-keys/{key_id}",
            "rotate": "POST /v1/api-keys/{key_id}/rotate",
            "revoke": "DELETE /v1/api-keys/{key_id}",
        },
    ),
    "quotas": ClientResource("accounts", "Quotas", {"get": "GET /v1/quotas"}),
    "artifacts": ClientResource(
        "artifacts",
        "Artifacts",
        _crud("/v1/model-artifacts", ARTIFACT)
        | {
            "card": f"GET {ARTIFACT}/card",
            "start_import": f"POST {ARTIFACT}/imports",
            "cancel_import": f"DELETE {ARTIFACT}/imports/{{import_id}}",
        },
        is_extended=True,
    ),
    "deployments": ClientResource(
        "deployments",
        "Deployments",
        _crud("/v1/deployments", DEPLOYMENT)
        | {
            "start": f"POST {DEPLOYMENT}/start",
            "stop": f"POST {DEPLOYMENT}/stop",
            "rollback": f"POST {DEPLOYMENT}/rollback",
            "set_traffic": f"PUT {DEPLOYMENT}/traffic",
            "events": f"GET {DEPLOYMENT}/events",
            "logs": f"GET {DEPLOYMENT}/logs",
            "metrics": f"GET {DEPLOYMENT}/metrics",
        },
        is_extended=True,
    ),
    "models": ClientResource(
        "deployments", "Models", {"list": "GET /v1/models", "get": "GET /v1/models/{model}"}
    ),
    "versions": ClientResource(
        "versions",
        "Versions",
        _crud(f"{DEPLOYMENT}/versions", f"{DEPLOYMENT}/versions/{{version_id}}", update=False)
        | {
            "promote": f"POST {DEPLOYMENT}/versions/{{version_id}}/promote",
            "compare": f"GET {DEPLOYMENT}/versions/{{version_id}}/comparison",
        },
        is_extended=True,
    ),
    "checks": ClientResource(
        "versions",
        "Checks",
        {
            "get": f"GET {DEPLOYMENT}/checks",
            "set": f"PUT {DEPLOYMENT}/checks",
            "run": f"POST {DEPLOYMENT}/checks/run",
        },
    ),
    "trials": ClientResource(
        "versions",
        "Trials",
        {
            "list": f"GET {DEPLOYMENT}/trials",
            "create": f"POST {DEPLOYMENT}/trials",
            "get": f"GET {DEPLOYMENT}/trials/{{trial_id}}",
        },
    ),
    "agents": ClientResource("agents", "Agents", _crud("/v1/agent", "/v1/agent/{agent_id}")),
    "runs": ClientResource(
        "agents",
        "Runs",
        _crud("/v1/agent/{agent_id}/runs", RUN, update=False)
        | {
            "cancel": f"POST {RUN}/cancel",
            "submit_tool_outputs": f"POST {RUN}/tool-outputs",
            "list_events": f"GET {RUN}/events",
        },
        is_extended=True,
    ),
    "files": ClientResource(
        "media",
        "Files",
        {
            "list": "GET /v1/files",
            "get": "GET /v1/files/{file_id}",
            "delete": "DELETE /v1/files/{file_id}",
        },
        is_extended=True,
    ),
    "videos": ClientResource(
        "media",
        "Videos",
        _crud("/v1/videos", "/v1/videos/{video_id}", update=False),
        is_extended=True,
    ),
    "batches": ClientResource(
        "batches",
        "Batches",
        {
            "list": "GET /v1/batches",
            "create": "POST /v1/batches",
            "get": "GET /v1/batches/{batch_id}",
            "cancel": "POST /v1/batches/{batch_id}/cancel",
        },
    ),
    "usage": ClientResource(
        "usage", "Usage", {"get": "GET /v1/usage", "events": "GET /v1/usage/events"}
    ),
    "credits": ClientResource(
        "usage",
        "Credits",
        {
            "get": "GET /v1/credits",
            "transfers": "GET /v1/credits/transfers",
            "grant": "POST /v1/accounts/{account_id}/credits",
        },
    ),
    "prices": ClientResource(
        "usage", "Prices", {"list": "GET /v1/prices", "create": "POST /v1/prices"}
    ),
    "machine": ClientResource(
        "machine", "Machine", {"get": "GET /v1/machine", "health": "GET /health"}
    ),
    "nodes": ClientResource("machine", "Nodes", {"list": "GET /v1/nodes"}),
    "text_tasks": ClientResource(
        "tasks_text",
        "TextTasks",
        {
            "text_classification": "POST /v1/classifications/text",
            "token_classification": "POST /v1/classifications/token",
            "zero_shot_classification": "POST /v1/classifications/zero-shot/text",
            "feature_extraction": "POST /v1/feature-extraction",
            "fill_mask": "POST /v1/fill-mask",
            "question_answering": "POST /v1/question-answering/extractive",
            "table_question_answering": "POST /v1/question-answering/table",
            "moderation": "POST /v1/moderations",
            "rerank": "POST /v1/rerank",
            "similarity": "POST /v1/similarity",
            "summarization": "POST /v1/summarizations",
            "translation": "POST /v1/translations",
        },
    ),
    "image_tasks": ClientResource(
        "tasks_images",
        "ImageTasks",
        {
            "image_classification": "POST /v1/classifications/image",
            "zero_shot_image_classification": "POST /v1/classifications/zero-shot/image",
            "object_detection": "POST /v1/detections/object",
            "zero_shot_object_detection": "POST /v1/detections/zero-shot/object",
            "depth_estimation": "POST /v1/images/depth",
            "image_feature_extraction": "POST /v1/images/feature-extraction",
            "mask_generation": "POST /v1/images/masks",
            "image_segmentation": "POST /v1/images/segmentation",
            "image_to_text": "POST /v1/images/to-text",
            "document_question_answering": "POST /v1/question-answering/document",
            "visual_question_answering": "POST /v1/question-answering/visual",
        },
    ),
    "sound_tasks": ClientResource(
        "tasks_sounds",
        "SoundTasks",
        {
            "audio_classification": "POST /v1/classifications/audio",
            "zero_shot_audio_classification": "POST /v1/classifications/zero-shot/audio",
            "video_classification": "POST /v1/classifications/video",
        },
    ),
}

_OPENAI = "the client is the OpenAI SDK: Stoker.openai()"
_ANTHROPIC = "the client is the anthropic SDK"
_PUSH = "artifacts.push sends files"
_FILES = "files.create sends large files with it"
_BROWSERS = "the console's pages sign in with it"
_ALIAS = "another path of POST /v1/rerank"
_TEI = "for clients of Text Embeddings Inference; text_tasks has the same"
_TOKENS = "for clients of Text Embeddings Inference and vLLM"
EXCLUDED: Mapping[str, str] = {
    "GET /console/session": _BROWSERS,
    "POST /console/session": _BROWSERS,
    "DELETE /console/session": _BROWSERS,
    "POST /v1/console/links": "the command 'stoker console' opens a browser with it",
    "GET /metrics": "Prometheus reads it",
    "GET /ready": "load balancers read its status",
    "GET /info": "for clients of Text Embeddings Inference; deployments.get has more",
    "POST /decode": _TOKENS,
    "POST /detokenize": _TOKENS,
    "POST /tokenize": _TOKENS,
    "POST /embed": _TEI,
    "POST /embed_all": "for clients of Text Embeddings Inference",
    "POST /embed_sparse": _TEI,
    "POST /predict": _TEI,
    "POST /similarity": _TEI,
    "POST /rerank": _ALIAS,
    "POST /v2/rerank": _ALIAS,
    "POST /v1/audio/speech": _OPENAI,
    "POST /v1/audio/transcriptions": _OPENAI,
    "POST /v1/audio/translations": _OPENAI,
    "POST /v1/chat/completions": _OPENAI,
    "POST /v1/completions": _OPENAI,
    "POST /v1/embeddings": _OPENAI,
    "POST /v1/images/edits": _OPENAI,
    "POST /v1/images/generations": _OPENAI,
    "POST /v1/responses": _OPENAI,
    "GET /v1/responses/{response_id}": _OPENAI,
    "DELETE /v1/responses/{response_id}": _OPENAI,
    "POST /v1/responses/{response_id}/cancel": _OPENAI,
    "GET /v1/responses/{response_id}/input_items": _OPENAI,
    "POST /v1/responses/compact": _OPENAI,
    "POST /v1/responses/input_tokens": _OPENAI,
    "POST /v1/messages": _ANTHROPIC,
    "POST /v1/messages/count_tokens": _ANTHROPIC,
    f"POST {ARTIFACT}/uploads": _PUSH,
    f"GET {ARTIFACT}/uploads/{{upload_id}}": _PUSH,
    f"DELETE {ARTIFACT}/uploads/{{upload_id}}": _PUSH,
    f"POST {ARTIFACT}/uploads/{{upload_id}}/complete": _PUSH,
    f"HEAD {ARTIFACT}/uploads/{{upload_id}}/files/{{path}}": _PUSH,
    f"PUT {ARTIFACT}/uploads/{{upload_id}}/files/{{path}}": _PUSH,
    f"DELETE {ARTIFACT}/uploads/{{upload_id}}/files/{{path}}": _PUSH,
    f"PUT {ARTIFACT}/uploads/{{upload_id}}/files/{{path}}/parts/{{number}}": _PUSH,
    "POST /v1/files": "files.create sends the file",
    "POST /v1/uploads": _FILES,
    "GET /v1/uploads/{file_upload_id}": _FILES,
    "POST /v1/uploads/{file_upload_id}/parts": _FILES,
    "POST /v1/uploads/{file_upload_id}/complete": _FILES,
    "POST /v1/uploads/{file_upload_id}/cancel": _FILES,
    "GET /v1/events": "events.follow reads the stream",
    "GET /v1/files/{file_id}/content": "files.download saves it",
    "GET /v1/videos/{video_id}/content": "videos.download saves it",
}
"""Operations without a generated method, with the reason."""

MERGED: Mapping[str, tuple[str, ...]] = {"UsageEvent": ("HoldingEvent", "CountEvent")}
"""Struct -> schemas that a list mixes. Fields that some of them lack are optional."""
