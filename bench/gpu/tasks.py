"""Rows of task models: BERT-base tokens, MiniLM embeddings and ViT-base images."""

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import clients_of
from bench.gpu import answers, models
from bench.gpu.load import Load
from bench.gpu.results import Row, Target
from bench.gpu.session import Session
from bench.gpu.sizes import Sizes
from bench.samples import photos, texts

WARM_CLIENTS = 32


@dataclass(frozen=True)
class Workload:
    """A task model with its inputs."""

    title: str
    model: str
    pipeline: str
    path: str
    field: str
    """Name of the input in the request."""
    kind: str
    """Kind of the bare loop."""
    folder: Callable[[Sizes], Path]
    inputs: Callable[[Sizes], list[str]]
    wrong: Callable[[Sequence[Any], int, Any], str]
    """Returns why an answer is wrong, from all expected answers, the input's number and the
    answer.
    """


def _wrong_tokens(expected: Sequence[Any], number: int, answer: Any) -> str:
    return answers.wrong_labels(expected[number], answer, ("entity", "start", "end"))


def _wrong_embedding(expected: Sequence[Any], number: int, answer: Any) -> str:
    return answers.wrong_vector(expected, number, answer["data"][0]["embedding"])


def _wrong_image(expected: Sequence[Any], number: int, answer: Any) -> str:
    return answers.wrong_labels(expected[number], answer[:1], ("label",))


def _texts(sizes: Sizes) -> list[str]:
    # A text that occurs twice would have two nearest vectors.
    return list(dict.fromkeys(texts(sizes.texts)))


def _photos(sizes: Sizes) -> list[str]:
    return [base64.b64encode(photo).decode() for photo in photos(sizes.photos)]


BERT = Workload(
    "BERT-base tokens",
    "bert-base",
    "token-classification",
    "/v1/classifications/token",
    "inputs",
    "tokens",
    models.bert,
    _texts,
    _wrong_tokens,
)
MINILM = Workload(
    "MiniLM embeddings",
    "minilm",
    "feature-extraction",
    "/v1/embeddings",
    "input",
    "embedding",
    models.minilm,
    _texts,
    _wrong_embedding,
)
VIT = Workload(
    "ViT-base images",
    "vit-base",
    "image-classification",
    "/v1/classifications/image",
    "inputs",
    "image",
    models.vit,
    _photos,
    _wrong_image,
)


def bert_rows(sizes: Sizes) -> list[Row]:
    one, many = sizes.text_clients
    return [
        Row(name=_name(BERT, one, "p50"), unit="ms", target=Target(most=2.5)),
        Row(name=_name(BERT, many), unit="1/s", target=Target(least=2500, ratio=0.8)),
    ]


def minilm_rows(sizes: Sizes) -> list[Row]:
    target = Target(least=4000)
    return [
        Row(name=_name(MINILM, count), unit="1/s", target=target)
        for count in sizes.embedding_clients
    ]


def vit_rows(sizes: Sizes) -> list[Row]:
    target = Target(least=1000)
    return [Row(name=_name(VIT, sizes.image_clients), unit="1/s", target=target)]


def _name(workload: Workload, clients: int, suffix: str = "") -> str:
    return f"{workload.title}, {clients_of(clients)}{f', {suffix}' if suffix else ''}"


def bert(session: Session, rows: Sequence[Row]) -> None:
    _run(session, BERT, dict(zip(session.sizes.text_clients, rows, strict=True)))


def minilm(session: Session, rows: Sequence[Row]) -> None:
    _run(session, MINILM, dict(zip(session.sizes.embedding_clients, rows, strict=True)))


def vit(session: Session, rows: Sequence[Row]) -> None:
    _run(session, VIT, {session.sizes.image_clients: rows[0]})


def _run(session: Session, workload: Workload, rows: Mapping[int, Row]) -> None:
    """Measures a workload at several numbers of clients.

    The bare loop runs first, because its answers are the expected ones.
    """
    sizes = session.sizes
    folder, inputs = workload.folder(sizes), workload.inputs(sizes)
    bare = session.bare(
        "encode", kind=workload.kind, folder=str(folder), inputs=inputs, batch=sizes.batch
    )
    session.bare("forget")
    deployment = session.deploy(folder, workload.model, workload.pipeline)
    session.require_gpu(deployment)
    bodies = [json.dumps({"model": workload.model, workload.field: text}) for text in inputs]
    clients = min(WARM_CLIENTS, max(rows))
    warm = session.load(workload.path, bodies, clients, sizes.warm_up_s)
    for count, row in rows.items():
        since = time.monotonic()
        load = session.load(workload.path, bodies, count, sizes.load_s)
        until = time.monotonic()
        _fill(row, load, bare, sizes)
        row.answers = f"{len(load.answers)} of {len(inputs)} inputs compared"
        row.wrong = _first_wrong(workload, bare["answers"], load)
        session.done(
            row,
            since,
            until,
            load=load.as_json(),
            bare={"per_s": bare["per_s"], "alone_s": bare["alone_s"]},
            warm_up=warm.as_json(),
            deployment=session.describe(deployment),
        )


def _fill(row: Row, load: Load, bare: dict[str, Any], sizes: Sizes) -> None:
    if row.unit == "ms":
        dtype = min(bare["alone_s"], key=bare["alone_s"].get)
        row.stoker, row.bare = load.took_s(0.5) * 1e3, bare["alone_s"][dtype] * 1e3
        row.bare_note = f"one input at a time, {dtype}"
    else:
        dtype = max(bare["per_s"], key=bare["per_s"].get)
        row.stoker, row.bare = load.rate, bare["per_s"][dtype]
        row.bare_note = f"batches of {sizes.batch} with preprocessing, {dtype}"


def _first_wrong(workload: Workload, expected: Sequence[Any], load: Load) -> str:
    """Returns the first wrong answer or error of a load."""
    if load.errors:
        return f"errors {dict(load.errors)}: {load.failure}"
    for number, answer in sorted(load.answers.items()):
        if wrong := workload.wrong(expected, number, answer):
            return f"input {number}: {wrong}"
    if workload.kind == "embedding":
        return ""
    return answers.wrong_scores(
        (expected[number], answer) for number, answer in load.answers.items()
    )
