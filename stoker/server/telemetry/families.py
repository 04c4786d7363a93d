"""Converts counts to Prometheus' metric families with names, labels and units.

Names follow https://prometheus.io/docs/practices/naming and the names of vLLM and
text-embeddings-inference where they have the same metric.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

import stoker
from stoker.runtime.observed import Status
from stoker.server.telemetry.histogram import Buckets, buckets
from stoker.server.telemetry.tally import Answers, MetricsRow
from stoker.wire.passes import BATCH_SIZES

MODEL = ("account", "model")
"""Labels of a model. Two accounts may use the same model name."""

Several = Mapping[str, float]


def of_calls(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    """Yields metrics of calls to deployments, as counted by the servers that received them."""
    yield _requests(rows)
    yield _histogram(
        "stoker_request_seconds",
        "Time of calls in a replica: queue, preprocessing and inference.",
        ((row, row.tally.seconds.buckets, row.tally.seconds.total) for row in rows),
    )
    yield _histogram(
        "stoker_request_wait_seconds",
        "Time that calls waited for a ready replica.",
        ((row, row.tally.waited.buckets, row.tally.waited.total) for row in rows),
    )
    yield from _of_versions(rows)
    yield from _of_tiers(rows)
    yield from _worked_on(rows)


def of_replicas(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    """Yields metrics of the replicas of deployments."""
    yield _histogram(
        "stoker_batch_size",
        "Samples or sequences that shared a forward pass.",
        (
            (row, buckets(BATCH_SIZES, row.stats.batches.passes), row.stats.batches.samples)
            for row in rows
        ),
    )
    yield _histogram(
        "stoker_cold_start_seconds",
        "Time from the request for a replica until it is ready.",
        ((row, row.tally.loads.buckets, row.tally.loads.total) for row in rows),
    )
    yield _by(
        CounterMetricFamily(
            "stoker_speculated_tokens",
            "Tokens of speculative decoding: `drafted`, and `accepted` of them.",
            labels=[*MODEL, "outcome"],
        ),
        rows,
        lambda row: {
            "drafted": row.stats.batches.drafted,
            "accepted": row.stats.batches.accepted,
        },
    )
    yield from _lives(rows)
    yield from _now(rows)


def of_statuses(statuses: Counter[Status]) -> Metric:
    family = GaugeMetricFamily("stoker_deployments", "Deployments by status.", labels=["status"])
    for status in Status:
        family.add_metric([status], statuses[status])
    return family


def of_http(answers: Mapping[tuple[str, str], Answers]) -> Iterable[Metric]:
    labels = ["route", "method"]
    requests = CounterMetricFamily(
        "stoker_http_requests",
        "HTTP requests by route template. `none` is an unknown path.",
        labels=[*labels, "status"],
    )
    seconds = HistogramMetricFamily(
        "stoker_http_request_seconds", "Time until the end of the response.", labels=labels
    )
    for key, of_route in answers.items():
        for status, count in list(of_route.statuses.items()):
            requests.add_metric([*key, str(status)], count)
        seconds.add_metric(key, of_route.seconds.buckets, of_route.seconds.total)
    return requests, seconds


def build_info() -> Metric:
    return InfoMetricFamily(
        "stoker_build",
        "Release of Stoker and of Python.",
        {"version": stoker.__version__, "python": platform.python_version()},
    )


def _requests(rows: Sequence[MetricsRow]) -> Metric:
    family = CounterMetricFamily(
        "stoker_requests",
        "Calls to deployments, by outcome: `ok`, `cancelled` or an error's code.",
        labels=[*MODEL, "pipeline", "outcome"],
    )
    for row in rows:
        for outcome, count in list(row.tally.outcomes.items()):
            family.add_metric([*_model(row), row.entry.pipeline, outcome], count)
    return family


def _of_versions(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    """Yields metrics per version, for deployments with calls to several versions."""
    labels = [*MODEL, "version"]
    requests = CounterMetricFamily(
        "stoker_version_requests",
        (
            "Calls per version of deployments with several versions; `mirrored`: copies "
            "of other versions' calls."
        ),
        labels=[*labels, "outcome", "mirrored"],
    )
    seconds = HistogramMetricFamily(
        "stoker_version_request_seconds",
        ("Time of calls in a replica, per version of deployments with several versions."),
        labels=labels,
    )
    for row in rows:
        if len(row.tally.versions) < 2:
            continue
        for version_id, tally in list(row.tally.versions.items()):
            name = (*_model(row), version_id)
            for (outcome, is_copy), count in list(tally.outcomes.items()):
                requests.add_metric([*name, outcome, str(is_copy).lower()], count)
            seconds.add_metric(name, tally.seconds.buckets, tally.seconds.total)
    return requests, seconds


def _of_tiers(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    """Yields metrics per service tier. A tier has series from its first call on."""
    labels = [*MODEL, "tier"]
    requests = CounterMetricFamily(
        "stoker_tier_requests",
        "Calls per service tier. Copies of mirrored calls are `flex`.",
        labels=[*labels, "outcome"],
    )
    tokens = CounterMetricFamily(
        "stoker_tier_tokens",
        "Tokens per service tier that models read (`input`) and wrote (`output`).",
        labels=[*labels, "direction"],
    )
    queued = HistogramMetricFamily(
        "stoker_tier_queue_seconds",
        "Time of answered calls per service tier until their computation; for language models "
        "until the first token.",
        labels=labels,
    )
    for row in rows:
        for tier, tally in list(row.tally.tiers.items()):
            name = (*_model(row), tier.value)
            for outcome, count in list(tally.outcomes.items()):
                requests.add_metric([*name, outcome], count)
            for direction in ("input", "output"):
                tokens.add_metric([*name, direction], tally.counts[f"{direction}_tokens"])
            queued.add_metric(name, tally.queued.buckets, tally.queued.total)
    return requests, tokens, queued


def _worked_on(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    def counted(name: str, text: str, count: str, scale: float = 1) -> Metric:
        return _counter(name, text, rows, lambda row: row.tally.counts[count] * scale)

    yield _by(
        CounterMetricFamily(
            "stoker_tokens",
            "Tokens that models read (`input`) and wrote (`output`).",
            labels=[*MODEL, "direction"],
        ),
        rows,
        lambda row: {
            "input": row.tally.counts["input_tokens"],
            "output": row.tally.counts["output_tokens"],
        },
    )
    yield counted("stoker_images", "Images that models read or generated.", "images")
    yield counted("stoker_audio_seconds", "Audio that models read or generated.", "audio_ms", 1e-3)
    yield counted("stoker_video_seconds", "Video that models read or generated.", "video_ms", 1e-3)


def _lives(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    yield _by(
        CounterMetricFamily(
            "stoker_cold_starts",
            "Replica starts, by outcome: `loaded`, `load_failed`, `load_timeout`, `files_missing`.",
            labels=[*MODEL, "outcome"],
        ),
        rows,
        lambda row: row.tally.starts,
    )
    yield _by(
        CounterMetricFamily(
            "stoker_evictions",
            "Unloads of a deployment's last replica, by reason.",
            labels=[*MODEL, "reason"],
        ),
        rows,
        lambda row: row.tally.evictions,
    )
    yield _by(
        CounterMetricFamily(
            "stoker_workers_lost",
            "Replicas that a deployment lost while they worked, by reason.",
            labels=[*MODEL, "reason"],
        ),
        rows,
        lambda row: row.tally.losses,
    )
    yield _counter(
        "stoker_memory_held_mib_ms",
        "Memory held by workers, in MiB-milliseconds, from the start of loading to exit.",
        rows,
        lambda row: row.held_mib_ms,
    )


def _now(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    yield _gauge(
        "stoker_requests_outstanding",
        "Waiting and running calls.",
        rows,
        lambda row: row.stats.calls,
    )
    yield _gauge(
        "stoker_requests_waiting",
        "Calls that wait for a ready replica.",
        rows,
        lambda row: max(
            0, row.stats.calls - sum(replica.outstanding for replica in row.stats.replicas)
        ),
    )
    yield _by(
        GaugeMetricFamily("stoker_replicas", "Replicas by status.", labels=[*MODEL, "status"]),
        rows,
        lambda row: Counter(replica.status for replica in row.stats.replicas),
    )
    yield _gauge(
        "stoker_replica_memory_bytes",
        "Memory of a deployment's replicas, as the sum of their proportional set sizes.",
        rows,
        lambda row: sum(replica.memory_bytes or 0 for replica in row.stats.replicas),
    )
    yield from _of_devices(rows)
    used = GaugeMetricFamily(
        "stoker_kv_cache_usage_ratio",
        "Share of the KV cache in use, of the replica with the highest share.",
        labels=MODEL,
    )
    for row in rows:
        shares = [
            replica.cache_usage for replica in row.stats.replicas if replica.cache_usage is not None
        ]
        if shares:
            used.add_metric(_model(row), max(shares))
    yield used


def _of_devices(rows: Sequence[MetricsRow]) -> Iterable[Metric]:
    """Yields the GPU memory of replicas. Replicas on a CPU have no series."""
    labels = [*MODEL, "replica", "device"]
    used = GaugeMetricFamily(
        "stoker_replica_device_memory_bytes", "Measured GPU memory of a replica.", labels=labels
    )
    held = GaugeMetricFamily(
        "stoker_replica_device_memory_held_bytes",
        "GPU memory that a replica claims.",
        labels=labels,
    )
    for row in rows:
        for replica in row.stats.replicas:
            if not replica.device_held_bytes:
                continue
            name = (*_model(row), replica.id, replica.device)
            held.add_metric(name, replica.device_held_bytes)
            if replica.device_bytes is not None:
                used.add_metric(name, replica.device_bytes)
    return used, held


def _model(row: MetricsRow) -> tuple[str, str]:
    return row.entry.account_id, row.entry.model


def _counter(
    name: str, text: str, rows: Sequence[MetricsRow], value: Callable[[MetricsRow], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=MODEL)
    for row in rows:
        family.add_metric(_model(row), value(row))
    return family


def _gauge(
    name: str, text: str, rows: Sequence[MetricsRow], value: Callable[[MetricsRow], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=MODEL)
    for row in rows:
        family.add_metric(_model(row), value(row))
    return family


def _by(
    family: CounterMetricFamily | GaugeMetricFamily,
    rows: Sequence[MetricsRow],
    values: Callable[[MetricsRow], Several],
) -> Metric:
    """Adds the values of each row to a family with one additional label."""
    for row in rows:
        for which, value in list(values(row).items()):
            family.add_metric([*_model(row), which], value)
    return family


def _histogram(
    name: str, text: str, rows: Iterable[tuple[MetricsRow, Buckets, float]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=MODEL)
    for row, counted, total in rows:
        family.add_metric(_model(row), counted, total)
    return family
