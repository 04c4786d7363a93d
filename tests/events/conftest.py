from tests.support.databases import postgres_url

__all__ = ["postgres_url"]
