# `python -m tools.client_api` writes this file.
"""Operations of text tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Any, Unpack, overload

from ... import params, results
from ..api import AsyncResource


class AsyncTextTasks(AsyncResource):
    @overload
    async def text_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: str | params.TextPairParams,
        *,
        wait: int | None = None,
        **fields: Unpack[params.TextClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    async def text_classification(
        self,
        inputs: Sequence[str | params.TextPairParams | tuple[str, str]],
        *,
        wait: int | None = None,
        **fields: Unpack[params.TextClassificationParams],
    ) -> list[list[results.Label]]: ...

    async def text_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/text`: Classify texts."""
        return await self._api.result(
            "/v1/classifications/text", {"inputs": inputs, **fields}, wait=wait
        )

    @overload
    async def token_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: str,
        *,
        wait: int | None = None,
        **fields: Unpack[params.TokenClassificationParams],
    ) -> list[results.Token]: ...

    @overload
    async def token_classification(
        self,
        inputs: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.TokenClassificationParams],
    ) -> list[list[results.Token]]: ...

    async def token_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/token`: Classify tokens."""
        return await self._api.result(
            "/v1/classifications/token", {"inputs": inputs, **fields}, wait=wait
        )

    @overload
    async def zero_shot_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: str,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotClassificationParams],
    ) -> results.Classification: ...

    @overload
    async def zero_shot_classification(
        self,
        inputs: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotClassificationParams],
    ) -> list[results.Classification]: ...

    async def zero_shot_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/zero-shot/text`: Classify texts by your own labels."""
        return await self._api.result(
            "/v1/classifications/zero-shot/text", {"inputs": inputs, **fields}, wait=wait
        )

    @overload
    async def feature_extraction(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: str,
        *,
        wait: int | None = None,
        **fields: Unpack[params.FeatureExtractionParams],
    ) -> list[float] | list[list[float]] | results.SparseFeatures: ...

    @overload
    async def feature_extraction(
        self,
        inputs: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.FeatureExtractionParams],
    ) -> list[list[float] | list[list[float]] | results.SparseFeatures]: ...

    async def feature_extraction(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/feature-extraction`: Extract features."""
        return await self._api.result(
            "/v1/feature-extraction", {"inputs": inputs, **fields}, wait=wait
        )

    @overload
    async def fill_mask(  # pyright: ignore[reportOverlappingOverload]
        self, inputs: str, *, wait: int | None = None, **fields: Unpack[params.FillMaskParams]
    ) -> list[results.Filling] | list[list[results.Filling]]: ...

    @overload
    async def fill_mask(
        self,
        inputs: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.FillMaskParams],
    ) -> list[list[results.Filling] | list[list[results.Filling]]]: ...

    async def fill_mask(self, inputs: object, *, wait: int | None = None, **fields: object) -> Any:
        """`POST /v1/fill-mask`: Fill masked tokens."""
        return await self._api.result("/v1/fill-mask", {"inputs": inputs, **fields}, wait=wait)

    async def question_answering(
        self, *, wait: int | None = None, **fields: Unpack[params.QuestionAnsweringParams]
    ) -> results.Answer | list[results.Answer] | list[results.Answer | list[results.Answer]]:
        """`POST /v1/question-answering/extractive`: Answer questions from texts."""
        return await self._api.result("/v1/question-answering/extractive", fields, wait=wait)

    @overload
    async def table_question_answering(  # pyright: ignore[reportOverlappingOverload]
        self,
        query: str,
        *,
        wait: int | None = None,
        **fields: Unpack[params.TableQuestionAnsweringParams],
    ) -> results.TableAnswer: ...

    @overload
    async def table_question_answering(
        self,
        query: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.TableQuestionAnsweringParams],
    ) -> list[results.TableAnswer]: ...

    async def table_question_answering(
        self, query: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/question-answering/table`: Answer questions about tables."""
        return await self._api.result(
            "/v1/question-answering/table", {"query": query, **fields}, wait=wait
        )

    async def moderation(
        self, *, wait: int | None = None, **fields: Unpack[params.ModerationParams]
    ) -> results.Moderation:
        """`POST /v1/moderations`: Moderate texts."""
        return await self._api.result("/v1/moderations", fields, wait=wait)

    async def rerank(
        self, *, wait: int | None = None, **fields: Unpack[params.RerankParams]
    ) -> results.Ranking:
        """`POST /v1/rerank`: Rank documents by relevance to a query."""
        return await self._api.result("/v1/rerank", fields, wait=wait)

    async def similarity(
        self, *, wait: int | None = None, **fields: Unpack[params.SimilarityParams]
    ) -> list[float]:
        """`POST /v1/similarity`: Compare sentences."""
        return await self._api.result("/v1/similarity", fields, wait=wait)

    @overload
    async def summarization(  # pyright: ignore[reportOverlappingOverload]
        self, inputs: str, *, wait: int | None = None, **fields: Unpack[params.SummarizationParams]
    ) -> list[results.Summary]: ...

    @overload
    async def summarization(
        self,
        inputs: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.SummarizationParams],
    ) -> list[list[results.Summary]]: ...

    async def summarization(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/summarizations`: Summarize texts."""
        return await self._api.result("/v1/summarizations", {"inputs": inputs, **fields}, wait=wait)

    @overload
    async def translation(  # pyright: ignore[reportOverlappingOverload]
        self, inputs: str, *, wait: int | None = None, **fields: Unpack[params.TranslationParams]
    ) -> list[results.Translation]: ...

    @overload
    async def translation(
        self,
        inputs: Sequence[str],
        *,
        wait: int | None = None,
        **fields: Unpack[params.TranslationParams],
    ) -> list[list[results.Translation]]: ...

    async def translation(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/translations`: Translate texts."""
        return await self._api.result("/v1/translations", {"inputs": inputs, **fields}, wait=wait)
