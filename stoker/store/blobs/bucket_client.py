"""Client of an object store, from a URL and the environment."""

import os
from datetime import timedelta

from obstore.store import AzureStore, GCSStore, S3Store, from_url

_FROM_ENVIRONMENT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def bucket_store(url: str, timeout_s: float) -> S3Store | GCSStore | AzureStore:
    endpoint = next((os.environ[name] for name in _FROM_ENVIRONMENT if os.environ.get(name)), "")
    store = from_url(
        url,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
            # Per request. A block is transferred within this time on any network that serves
            # models.
            "timeout": timedelta(seconds=max(1.0, timeout_s / 2)),
        },
        retry_config={
            "max_retries": 10,
            "retry_timeout": timedelta(seconds=timeout_s),
            "backoff": {
                "init_backoff": timedelta(milliseconds=200),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
    )
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        raise ValueError(f"no bucket: {url}")
    return store
