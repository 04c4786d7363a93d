"""Formats amounts of memory for messages."""


def in_words(size: int) -> str:
    """Formats bytes as MiB or GiB."""
    mib = size / (1 << 20)
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"
