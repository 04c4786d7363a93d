"""Settings of uploads and inspections."""

from pydantic import Field
from pydantic_settings import BaseSettings


class ArtifactSettings(BaseSettings):
    """Settings of uploads and inspections. Read by `Settings`."""

    upload_part_mib: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Size of an upload's parts, MiB. The last part may be smaller.",
    )
    upload_expiry_days: float = Field(
        default=7,
        gt=0,
        le=365,
        description="Lifetime of an upload session that is not completed, days.",
    )
    artifact_limit_gib: float = Field(
        default=1024, gt=0, le=1_000_000, description="Largest artifact, GiB."
    )
    artifact_files_limit: int = Field(
        default=2000, ge=1, le=100_000, description="Maximum number of files in an artifact."
    )
    file_limit_gib: float = Field(
        default=1, gt=0, le=1024, description="Largest file that a client uploads, GiB."
    )
    inspection_memory_mib: int = Field(
        default=2048,
        ge=512,
        le=1 << 20,
        description="Memory limit of one upload's inspection, MiB of address space.",
    )
    inspection_timeout_s: float = Field(
        default=120, gt=0, le=3600, description="Longest inspection of an upload, seconds."
    )
    disk_reserve_mib: int = Field(
        default=1024,
        ge=0,
        le=1 << 30,
        description=(
            "Disk space that uploads and generated files leave free for the database, "
            "MiB, at most 5% of the disk."
        ),
    )
