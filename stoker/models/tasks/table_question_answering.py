"""Table question answering: the answer of a table to a question."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from typing_extensions import TypedDict

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.pipelines import TextPipelineStages
from stoker.models.stages.seq2seq import Seq2SeqStages
from stoker.models.tasks.base import NestedRequest, Task
from stoker.models.tasks.inputs import MANY, ONE, Truncation, one_or_many

MAX_COLUMNS = 256
MAX_ROWS = 10_000
MAX_CELLS = 20_000
MAX_CELL = 10_000

Cell = Annotated[str, Field(max_length=MAX_CELL)]
Columns = dict[Cell, Annotated[list[Cell], Field(min_length=1, max_length=MAX_ROWS)]]
Rows = list[dict[Cell, Cell]]


def _columns(table: Any) -> Any:
    """Returns a list of rows as columns. The first row names the columns."""
    if not isinstance(table, list) or not table:
        return cast("Any", table)
    rows = cast("list[Any]", table)
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or set(cast("dict[str, Any]", row)) != {*rows[0]}:
            raise ValueError(f"row {index} must be an object with the same columns as the first")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _square(table: Columns) -> Columns:
    rows = len(next(iter(table.values())))
    for name, cells in table.items():
        if len(cells) != rows:
            raise ValueError(f"column '{name[:100]}' has {len(cells)} cells; the first has {rows}")
    if rows * len(table) > MAX_CELLS:
        raise ValueError(f"has {rows * len(table)} cells; the limit is {MAX_CELLS}")
    return table


Table = Annotated[
    Columns,
    Field(min_length=1, max_length=MAX_COLUMNS),
    BeforeValidator(_columns, json_schema_input_type=Columns | Rows),
    AfterValidator(_square),
    Field(
        description=f"Column names with the texts of their cells, or a list of rows as objects; "
        f"at most {MAX_COLUMNS} columns and {MAX_CELLS} cells."
    ),
]
Query = Annotated[str, Field(min_length=1)]
Queries = Annotated[
    Annotated[Query, Tag(ONE)] | Annotated[list[Query], Field(min_length=1), Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="A question, or a list of questions: one answer each, in order."),
]


class TableQuestionAnsweringRequest(NestedRequest):
    """Request with a table and queries. `inputs` is accepted too: an object with `table` and
    `query`.
    """

    table: Table
    query: Queries
    truncation: Truncation = Field(
        default=False,
        description=(
            "Drop the last rows of a table that is too long. Default: it is rejected, "
            "with the numbers."
        ),
    )
    padding: Literal["do_not_pad", "longest", "max_length"] | None = Field(
        default=None, description="Accepted because clients send it. Padding changes no answer."
    )

    input_fields: ClassVar[tuple[str, ...]] = ("query", "table")

    def parameters(self) -> dict[str, Any]:
        # The table is sent once, for any number of questions about it.
        return {"table": self.table, "truncation": self.truncation}


class TableAnswer(TypedDict):
    """An answer. `coordinates` are [row, column] of the `cells`. A generative model names no
    cells.
    """

    answer: str
    coordinates: list[tuple[int, int]]
    cells: list[str]
    aggregator: NotRequired[str]


def _checked(query: str) -> str:
    if not query.strip():
        raise InputError("The question must not be empty.", field="query")
    return query


class TapasStages(TextPipelineStages):
    """A model that selects cells and an aggregation of them. Its tokenizer needs pandas."""

    pipeline = "TableQuestionAnsweringPipeline"
    auto_class = "AutoModelForTableQuestionAnswering"
    per_token = ("logits",)

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

        library: Any = pandas
        table, query = parameters["table"], _checked(item)
        self._refuse_large(table)
        frame = library.DataFrame.from_dict(table)
        limit = self.max_tokens()
        cut = {"truncation": "drop_rows_to_fit", "max_length": limit}
        try:
            encoded = self.tokenizer(
                frame, query, return_tensors="pt", **(cut if parameters["truncation"] else {})
            )
        except ValueError:
            # The text is too long even without rows.
            raise InputError(
                f"The question and the column names alone exceed the {limit} tokens that "
                "this model takes. Shorten them.",
                field="query",
            ) from None
        length = encoded["input_ids"].shape[1]
        if length > limit:
            raise InputError(
                f"The table and the question have {length} tokens; this model takes at most "
                f"{limit}. Shorten the table, or send 'truncation': true to leave out its "
                "last rows.",
                field="table",
                of_item=False,
            )
        features = {name: encoded[name] for name in self.tokenizer.model_input_names}
        return [Sample(features, {"table": frame})]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> TableAnswer:
        output = outputs[0]
        model_inputs = {name: output[name] for name in self.tokenizer.model_input_names}
        logits = [output[name] for name in ("logits", "logits_aggregation") if name in output]
        return self._pipe.postprocess(
            {"model_inputs": model_inputs, "table": output["table"], "outputs": logits}
        )

    def probe(self, length: int, number: int = 0) -> Sample:
        rows = max(1, length - 4)
        cells = specimens.words(number, rows) if number else ["a"] * rows
        return self.preprocess("a", {"table": {"a": cells}, "truncation": True})[0]

    def _refuse_large(self, table: Mapping[str, Sequence[str]]) -> None:
        """Raises `InputError` if the table has more columns or rows than the model can number.

        The numbers start at 1; 0 stands for tokens outside the table.
        """
        _, columns, rows, *_ = self.config.type_vocab_sizes
        has = (("columns", len(table), columns), ("rows", len(next(iter(table.values()))), rows))
        for unit, count, numbers in has:
            if count >= numbers:
                raise InputError(
                    f"The table has {count} {unit}; this model takes at most {numbers - 1}.",
                    field="table",
                    of_item=False,
                )


class TapexStages(Seq2SeqStages):
    """A model that reads the table as one text and writes the answer.

    Format of the text: Liu et al., "TAPEX: Table Pre-training via Learning a Neural SQL Executor",
    2021, and the TapexTokenizer of transformers 4.
    """

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        text = f"{_checked(item)} {_flat(parameters['table'])}"
        if self.tokenizer.init_kwargs.get("do_lower_case", True):
            text = text.lower()
        try:
            return super().preprocess(text, {"truncation": parameters["truncation"]})
        except InputError as error:
            raise InputError(error.message, field="table", of_item=False) from error

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> TableAnswer:
        return {"answer": self.text(outputs[0]), "coordinates": [], "cells": []}


def _flat(table: Mapping[str, Sequence[str]]) -> str:
    rows = zip(*table.values(), strict=True)
    lines = [f"row {number} : {' | '.join(cells)}" for number, cells in enumerate(rows, 1)]
    return " ".join([f"col : {' | '.join(table)}", *lines])


TASK = Task(
    pipeline="table-question-answering",
    path="/v1/question-answering/table",
    summary="Answer questions about tables",
    request=TableQuestionAnsweringRequest,
    result=TableAnswer,
    # TAPEX uses BART's architecture, which has other main purposes.
    architectures=("TapasForQuestionAnswering", "BartForCond*"),
    families=("tapas", "bart"),
    example={
        "table": {"City": ["Paris", "Berlin"], "Trees": ["1200", "900"]},
        "query": "How many trees are in Berlin?",
    },
    example_result={
        "answer": "SUM > 900",
        "coordinates": [[1, 1]],
        "cells": ["900"],
        "aggregator": "SUM",
    },
    stages=by_kind(TapexStages, {"tapas": TapasStages}),
)
