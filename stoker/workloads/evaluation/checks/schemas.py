from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString

MOST_CHECKS = 100
MOST_NUMBERS = 65_536

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e30, le=1e30)]


class CosineMin(RequestModel):
    vector: list[Number] = Field(min_length=2, max_length=MOST_NUMBERS)
    min: float = Field(ge=-1, le=1)


class Expect(RequestModel):
    """Conditions for a response. All conditions that are set must hold."""

    status: int = Field(200, ge=100, le=599, description="The HTTP status that a client would get.")
    equal: Any = Field(
        None,
        description=(
            "Expected response, or its text if the model generates text. Numbers may "
            "differ by 0.0001; `id`, `created` and `usage` are ignored."
        ),
    )
    top_label: str | None = Field(
        None, max_length=1024, description="The label with the highest score."
    )
    contains: str | None = Field(
        None,
        min_length=1,
        max_length=65_536,
        description="Text that must occur in one of the response's texts.",
    )
    cosine_min: CosineMin | None = Field(
        None,
        description="Minimum cosine similarity between the response's first vector and this one.",
    )
    json_schema: dict[str, Any] | None = Field(
        None,
        description=(
            "JSON schema (draft 2020-12) for the response, or for generated text that is JSON."
        ),
    )

    @model_validator(mode="after")
    def _says_something(self) -> "Expect":
        if not self.model_fields_set:
            raise ValueError(f"send at least one of {', '.join(type(self).model_fields)}")
        return self


class Check(RequestModel):
    name: str = Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")
    request: dict[str, Any] = Field(
        description="Request body for the deployment's first endpoint, without `model`."
    )
    expect: Expect


class ChecksUpdate(RequestModel):
    checks: list[Check] = Field(
        max_length=MOST_CHECKS, description="All checks; an empty list removes them."
    )

    @model_validator(mode="after")
    def _differ(self) -> "ChecksUpdate":
        names = [item.name for item in self.checks]
        if twice := next((item for item in names if names.count(item) > 1), None):
            raise ValueError(f"two checks have the name '{twice}'")
        return self


class Result(ResponseModel):
    name: str
    is_passed: bool
    message: str = Field(
        description="Difference from the expected result; empty if the check passed."
    )
    ms: float = Field(description="Time until the answer, milliseconds.")


class Report(ResponseModel):
    """Results of a deployment's checks."""

    object: Literal["deployment.check_report"] = "deployment.check_report"
    deployment_id: str
    is_passed: bool = Field(description="Whether all were.")
    results: Sequence[Result]
    created_at: UtcString


class Checks(ResponseModel):
    object: Literal["deployment.checks"] = "deployment.checks"
    deployment_id: str
    checks: Sequence[dict[str, Any]]
    report: Report | None = Field(description="Report of the last run of these checks.")
    updated_at: UtcString | None
