"""Operations that follow the APIs of Text Embeddings Inference (TEI) and vLLM."""

from typing import Annotated, Any

from pydantic import RootModel, Tag

from stoker.inference.forms import FormsRequest, by_fields
from stoker.inference.operation import JSON, Operation, WholeAnswer
from stoker.inference.other_servers import tokens
from stoker.inference.session import CallSession
from stoker.inference.tasks import answering
from stoker.models.tasks import rerank
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.other_servers import scores, vectors
from stoker.models.tasks.other_servers import tokens as token_tasks
from stoker.models.tasks.other_servers.fields import TAG
from stoker.models.tasks.rerank import Ranking, RerankRequest
from stoker.registry.deployments.directory import DirectoryEntry

_VLLM = "vLLM"


class RankRequest(
    FormsRequest[
        Annotated[
            Annotated[scores.RankTextsRequest, Tag("<texts>")]
            | Annotated[RerankRequest, Tag("<documents>")],
            by_fields(
                {"texts": "<texts>", "documents": "<documents>"},
                default="<documents>",
                must_be="an object with 'documents', or with 'texts' in the form of Text "
                "Embeddings Inference, and not with both",
            ),
        ]
    ]
):
    """Request for a ranking in the form of Cohere and Jina, or in that of TEI."""

    forms = (scores.RankTextsRequest, RerankRequest)


class RankAnswer(RootModel[scores.RankedTexts | Ranking]):
    """The ranking in the form of the request."""


async def _rank(session: CallSession, entry: DirectoryEntry, body: RankRequest) -> WholeAnswer:
    is_tei = isinstance(body.root, scores.RankTextsRequest)
    task = scores.RANK_TEXTS if is_tei else rerank.TASK
    return await answering(task)(session, entry, body.root)


def _of(task: Task) -> Operation[TaskRequest]:
    return Operation(
        path=task.path,
        summary=task.summary,
        name=task.name,
        tag=TAG,
        request=task.request,
        answers={JSON: task.result},
        example=task.example,
        pipelines=task.pipelines,
        answer=answering(task),
    )


OPERATIONS: tuple[Operation[Any], ...] = (
    _of(vectors.EMBED),
    _of(vectors.EMBED_ALL),
    _of(vectors.EMBED_SPARSE),
    _of(vectors.SIMILARITY),
    _of(scores.PREDICT),
    Operation(
        path="/rerank",
        summary="Rank documents or texts by relevance to a query",
        name="rank",
        tag=TAG,
        request=RankRequest,
        answers={JSON: RankAnswer},
        example=rerank.TASK.example,
        pipelines=rerank.TASK.pipelines,
        answer=_rank,
    ),
    Operation(
        path="/tokenize",
        summary="Tokenize texts or a conversation",
        name="tokenize",
        tag=TAG,
        request=tokens.TokenizeRequest,
        answers={JSON: tokens.TokenizeAnswer},
        example=token_tasks.LIST_TOKENS.example,
        has_media_in_json=True,
        pipelines=tokens.PIPELINES,
        answer=tokens.tokenize,
    ),
    Operation(
        path="/decode",
        summary="Turn lists of tokens into texts",
        name="decode",
        tag=TAG,
        request=token_tasks.DecodeRequest,
        answers={JSON: token_tasks.DecodedTexts},
        example=token_tasks.DECODE.example,
        pipelines=tokens.PIPELINES,
        answer=tokens.decode,
    ),
    Operation(
        path="/detokenize",
        summary="Turn tokens into a text",
        name="detokenize",
        tag=_VLLM,
        request=token_tasks.DetokenizeRequest,
        answers={JSON: token_tasks.DetokenizedPrompt},
        example=token_tasks.DETOKENIZE.example,
        pipelines=tokens.PIPELINES,
        answer=tokens.detokenize,
    ),
)
