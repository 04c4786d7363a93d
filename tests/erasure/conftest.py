from tests.support.databases import migrated, postgres_url

__all__ = ["migrated", "postgres_url"]
