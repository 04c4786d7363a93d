"""Reads metrics as Prometheus does."""

import time
from collections.abc import Mapping

import httpx
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


class Scrape:
    """Samples of one scrape, parsed by a strict parser of its format."""

    def __init__(self, response: httpx.Response) -> None:
        self.text = response.raise_for_status().text
        self.content_type = response.headers["content-type"]
        is_open = self.content_type.startswith("application/openmetrics-text")
        parse = (
            openmetrics.text_string_to_metric_families
            if is_open
            else text_string_to_metric_families
        )
        self.families = {family.name: family for family in parse(self.text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples with these labels."""
        required = frozenset(labels.items())
        return sum(
            value
            for (known, has), value in self._samples.items()
            if known == name and required <= has
        )

    def labels(self, label: str, name: str | None = None) -> set[str]:
        """Returns all values of a label."""
        return {
            value
            for known, has in self._samples
            for key, value in has
            if key == label and name in (None, known)
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._samples}


def scrape(client: httpx.Client, headers: Mapping[str, str] = OPENMETRICS) -> Scrape:
    return Scrape(client.get("/metrics", headers=headers))


def scrape_until(client: httpx.Client, name: str, value: float, **labels: str) -> Scrape:
    """Scrapes until a metric reaches the value. Replicas report some metrics once per second."""
    deadline = time.monotonic() + 60
    while (current := scrape(client)).get(name, **labels) < value:
        assert time.monotonic() < deadline, (name, labels, current.get(name, **labels), value)
        time.sleep(0.05)
    return current
