"""Forms of tasks for clients of other servers, by name."""

from collections.abc import Mapping

from stoker.models.tasks.base import Task
from stoker.models.tasks.other_servers import info, scores, tokens, vectors

FORMS: Mapping[str, Task] = {
    task.name: task
    for task in (
        vectors.EMBED,
        vectors.EMBED_ALL,
        vectors.EMBED_SPARSE,
        vectors.SIMILARITY,
        scores.PREDICT,
        scores.RANK_TEXTS,
        tokens.LIST_TOKENS,
        tokens.DECODE,
        tokens.TOKENIZE,
        tokens.DETOKENIZE,
        info.INFO,
    )
}
