"""Figures that authors of other servers published, which run on none of our machines."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    page: str
    """Name of the benchmark with the page that shows the figure."""
    server: str
    load: str
    figure: str
    hardware: str
    source: str


PUBLISHED = (
    Published(
        page="throughput_embeddings",
        server="TEI",
        load="BAAI/bge-base-en-v1.5, 512 tokens, batches of 32",
        figure="450+ req/s",
        hardware="NVIDIA A10G",
        source="https://huggingface.co/blog/inference-endpoints-embeddings",
    ),
)


def published(page: str) -> list[str]:
    """Returns a table of the figures of a page, or nothing."""
    rows = [row for row in PUBLISHED if row.page == page]
    if not rows:
        return []
    return [
        "Published by its authors, other hardware, another model and other texts. Do not compute "
        "ratios with it:",
        "",
        "| server | load | figure | hardware | source |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row.server} | {row.load} | {row.figure} | {row.hardware} | <{row.source}> |"
            for row in rows
        ),
        "",
    ]
