"""Base classes of the wire types."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer

from stoker.base.strict_json import Strict


class RequestModel(Strict):
    """Base of Stoker's own requests. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    is_stored = True


class ResponseModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


UtcString = Annotated[datetime, PlainSerializer(iso, return_type=str)]


class Deleted(ResponseModel):
    id: str
    object: str
    deleted: Literal[True] = True
