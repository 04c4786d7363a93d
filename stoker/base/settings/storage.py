"""Settings of the database, the secret and the object store."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from stoker.base import database_urls, secret_key


class StorageSettings(BaseSettings):
    """Settings of the database, the secret and the object store. Read by `Settings`."""

    data_dir: Path = Field(
        default=Path(".data"), description="Database, artifacts, logs and caches."
    )
    database_url: Annotated[str, AfterValidator(database_urls.checked)] | None = Field(
        default=None,
        description="`postgresql://user:password@host:port/database`, with libpq's options such as "
        "`?sslmode=verify-full`. Default: SQLite in the data folder.",
    )
    secret: Annotated[SecretStr, AfterValidator(secret_key.checked)] | None = Field(
        default=None,
        description=(
            "Key that encrypts stored answers, runs and tokens, and signs links: 32 "
            "random bytes in URL-safe base64. All servers of one database need the same. "
            "Default: the first server generates it and stores it in the data folder, or "
            "in PostgreSQL."
        ),
    )
    secret_file: Path | None = Field(
        default=None, description="File that contains the secret, instead of `STOKER_SECRET`."
    )
    blob_url: str | None = Field(
        default=None,
        pattern=r"^((s3|gs|az)://[^\s/?#]+(/[^\s?#]*)?|file:///[^\s?#]*)$",
        max_length=512,
        description=(
            "Storage for artifacts and generated files: `s3://bucket/prefix` (or "
            "`gs://…`, `az://…`) or `file:///folder`. Servers of one database must share "
            "it. Default: the data folder."
        ),
    )
    blob_timeout_s: float = Field(
        default=60,
        ge=1,
        le=300,
        description=(
            "Longest time a failing bucket request is retried before the client gets a "
            "503, seconds."
        ),
    )
    blob_redirects: bool = Field(
        default=False,
        description=(
            "Redirect downloads to signed URLs of the bucket. Clients must be able to "
            "reach the bucket and follow redirects. False: the server sends the bytes."
        ),
    )
    model_cache_gib: float = Field(
        default=100,
        gt=0,
        le=1_000_000,
        description=(
            "Size of the local cache of models from a bucket, GiB. The least recently "
            "loaded models are evicted first; loaded models stay."
        ),
    )

    @field_validator("secret_file")
    @classmethod
    def _one_secret(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None:
            if info.data.get("secret") is not None:
                raise ValueError("STOKER_SECRET is also set. Set only one of them")
            secret_key.read(value)
        return value

    @property
    def given_secret(self) -> bytes | None:
        """The secret that the operator has set. Raises `ValueError` if its file has become
        invalid.
        """
        secret = secret_key.read(self.secret_file) if self.secret_file else self.secret
        return secret.get_secret_value().encode() if secret else None

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir.resolve()}/stoker.db"
