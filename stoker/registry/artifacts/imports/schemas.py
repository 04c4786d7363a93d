from pydantic import Field, SecretStr, field_validator

from stoker.platform.web.schemas import RequestModel

REPO_ID = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?$"


class ImportCreate(RequestModel):
    repo_id: str = Field(
        max_length=200,
        pattern=REPO_ID,
        description="Model repository on the hub, such as `org/name`.",
    )
    revision: str = Field(
        "main",
        min_length=1,
        max_length=255,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/+-]*$",
        description=(
            "Branch, tag or commit. It is resolved to a commit when the import is created."
        ),
    )
    token: SecretStr | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description=(
            "Token that may read the repository. It is stored encrypted, used for this "
            "import only, and erased when the import ends."
        ),
    )
    gguf: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description=(
            "GGUF file to import, or a part of its name that identifies it, as in "
            "`Q4_K_M`. Default: safetensors, or the only GGUF file."
        ),
    )

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        token = "" if value is None else value.get_secret_value()
        if not (token.isascii() and token.isprintable()):
            raise ValueError("must be printable ASCII: it is sent in a header")
        return value
