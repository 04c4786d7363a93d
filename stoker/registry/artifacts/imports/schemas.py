from pydantic import Field, SecretStr, field_validator

from stoker.platform.web.schemas import RequestModel

REPO_ID = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?$"


class ImportCreate(RequestModel):
    repo_id: str = Field(
        max_length=200,
        pattern=REPO_ID,
        description="The repository of models, as in `org/name`.",
    )
    revision: str = Field(
        "main",
        min_length=1,
        max_length=255,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/+-]*$",
        description="A branch, tag or commit; it is resolved to a commit now.",
    )
    token: SecretStr | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Of who may read the repository, where not everybody may: kept sealed, used "
        "for this import alone, and erased with its end.",
    )
    gguf: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="The GGUF file to take, or the part of its name that tells it from others, as "
        "in `Q4_K_M`; by default safetensors are taken, or the only GGUF file.",
    )

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        token = "" if value is None else value.get_secret_value()
        if not (token.isascii() and token.isprintable()):
            raise ValueError("must be printable ASCII: it is sent in a header")
        return value
