"""Checks of a bucket for `stoker doctor`."""

import asyncio
import tempfile
import time
from pathlib import Path

from obstore.exceptions import BaseError

from stoker.base.config import Settings
from stoker.cli.verdicts import DoctorCheck, DoctorVerdict
from stoker.store.blobs import BlobLostError, StoreUnavailableError, is_local, open_blobs
from stoker.store.blobs.probe import CLOCK, tried

_TIMEOUT_S = 10
_MAX_SKEW_S = 60
_HINT = (
    "Check STOKER_BLOB_URL, and the bucket's endpoint, region and credentials in the "
    "environment (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID …)."
)


def checks(settings: Settings) -> list[DoctorCheck]:
    """Checks the operations that a bucket must support. Returns nothing for a folder."""
    if settings.blob_url is None or is_local(settings.blob_url):
        return []
    return asyncio.run(_bucket(settings.blob_url))


async def _bucket(url: str) -> list[DoctorCheck]:
    results: list[DoctorCheck] = []
    with tempfile.TemporaryDirectory(prefix="stoker-doctor-") as folder:
        try:
            blobs = open_blobs(url, Path(folder), timeout_s=_TIMEOUT_S)
            begun = time.perf_counter()
            async for operation, ahead_s in tried(blobs):
                took_s = time.perf_counter() - begun
                results.append(
                    check_clock(ahead_s) if operation == CLOCK else _works(operation, took_s)
                )
                begun = time.perf_counter()
        except (StoreUnavailableError, BlobLostError, ValueError, BaseError) as error:
            message = str(error).partition("\n")[0]
            results.append(DoctorCheck("bucket", DoctorVerdict.FAIL, message, _HINT))
    return results


def _works(operation: str, took_s: float) -> DoctorCheck:
    return DoctorCheck(f"bucket: {operation}", DoctorVerdict.OK, f"works, {took_s * 1000:.0f} ms")


def check_clock(ahead_s: float) -> DoctorCheck:
    """Compares a bucket's clock with this machine's."""
    message = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) <= _MAX_SKEW_S:
        return DoctorCheck("bucket: clock", DoctorVerdict.OK, message)
    return DoctorCheck(
        "bucket: clock",
        DoctorVerdict.WARN,
        message,
        "Set this machine's clock: a bucket refuses requests that are 15 minutes off.",
    )
