"""Adapters: a PEFT folder is a separate artifact, and serves only with its base."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import Header
from stoker.models.adapters import lora
from stoker.models.adapters.lora import Lora

_DTYPES = frozenset({"F32", "F16", "BF16"})


def find_adapter(
    files: FileSet, headers: Mapping[str, Header], documents: Mapping[str, Json]
) -> Lora | None:
    """Returns the adapter that the files contain, or None if they contain none.

    Raises:
        InspectionError: `ADAPTER_ONLY` for an adapter next to other weights, which a loader would
            apply to any base that it names; `MISSING_WEIGHTS`, `UNSUPPORTED_MODEL`, `BAD_CONFIG`.
    """
    named = [path for path in sorted(files.sizes) if PurePosixPath(path).name == lora.CONFIG]
    if not named:
        return None
    if named != [lora.CONFIG] or any(path != lora.WEIGHTS for path in headers):
        raise InspectionError(
            FailureCode.ADAPTER_ONLY,
            f"{named[0]} marks the files as a PEFT adapter. Upload only {lora.CONFIG} and "
            f"{lora.WEIGHTS} in the top folder, without the weights of the base. Or merge "
            "the adapter (merge_and_unload, then save_pretrained) and upload the whole "
            f"model without {lora.CONFIG}.",
            named[0],
        )
    if lora.WEIGHTS not in headers:
        raise InspectionError(
            FailureCode.MISSING_WEIGHTS,
            f"{lora.WEIGHTS} is missing. Save the adapter with PEFT's save_pretrained, as "
            "safetensors.",
        )
    tensors = headers[lora.WEIGHTS].tensors
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise InspectionError(
                FailureCode.UNSUPPORTED_MODEL,
                f"{lora.WEIGHTS} stores {name[:120]!a} in {tensor.dtype}, which is not supported. "
                f"Use one of: {', '.join(sorted(_DTYPES))}.",
                lora.WEIGHTS,
            )
    try:
        return lora.read(
            documents[lora.CONFIG], {name: tensor.shape for name, tensor in tensors.items()}
        )
    except lora.AdapterFormatError as error:
        raise InspectionError(
            FailureCode.UNSUPPORTED_MODEL, f"{error.path} {error}", error.path
        ) from None


def facts_of(found: Lora) -> dict[str, Any]:
    """Returns the facts for `Inspection.adapter`."""
    return {"rank": found.rank, "modules": found.kinds, "base": found.base}
