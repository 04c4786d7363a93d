"""Settings, read from the environment as ``STOKER_<NAME>`` or from an ``.env`` file."""

from pydantic import ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from stoker.base.settings.accounts import AccountSettings
from stoker.base.settings.artifacts import ArtifactSettings
from stoker.base.settings.calls import CallSettings
from stoker.base.settings.jobs import JobSettings
from stoker.base.settings.listening import ListeningSettings
from stoker.base.settings.runtime import RuntimeSettings
from stoker.base.settings.sources import SourceSettings
from stoker.base.settings.storage import StorageSettings

MIB = 1024 * 1024


class Settings(
    RuntimeSettings,
    SourceSettings,
    JobSettings,
    AccountSettings,
    ArtifactSettings,
    CallSettings,
    ListeningSettings,
    StorageSettings,
):
    """All settings of an operator. A test keeps their list in docs/settings.md complete."""

    model_config = SettingsConfigDict(
        env_prefix="STOKER_",
        env_file=".env",
        extra="ignore",
        # An invalid secret is still a secret, so errors do not show it.
        hide_input_in_errors=True,
    )

    @field_validator("runtime")
    @classmethod
    def _has_what_it_needs(cls, value: str, info: ValidationInfo) -> str:
        url: str = info.data.get("database_url") or "sqlite"
        if value in ("nodes", "ray") and url.startswith("sqlite"):
            raise ValueError(
                f"'{value}' needs a PostgreSQL that all servers and nodes share: set "
                "STOKER_DATABASE_URL"
            )
        return value
