"""Groups of the commands in `stoker --help` and docs/cli.md."""

from collections.abc import Mapping, Sequence

CALLS = "Calls"
PANELS: Mapping[str, Sequence[str]] = {
    "Server": ("serve", "demo", "doctor", "backup", "restore", "engines", "node", "cluster"),
    CALLS: ("call", "chat", "launch", "image", "speak", "transcribe", "video", "models"),
    "Models": ("artifacts", "deploy", "deployments", "versions", "check", "tune"),
    "Agents, videos, batches and files": ("agents", "videos", "batch", "files"),
    "Accounts": ("login", "logout", "accounts", "keys", "usage", "credits", "prices"),
    "Monitoring": ("open", "top", "logs", "machine"),
}
"""Maps the title of each group to its commands, in the order of the help."""

PANEL_OF: Mapping[str, str] = {name: title for title, names in PANELS.items() for name in names}
"""Maps a command to the title of its group."""
