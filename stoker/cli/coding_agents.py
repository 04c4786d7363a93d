"""How coding agents for the terminal are started against a server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

KEY_VARIABLE = "STOKER_API_KEY"
_ANSWER_SHARE = 4
"""Answers get at most a fourth of the context."""
_MAX_ANSWER = 32_000


@dataclass(frozen=True)
class LaunchTarget:
    """Model and server that a coding agent calls."""

    base_url: str
    model: str
    context: int
    """Maximum tokens of prompt and answer."""

    @property
    def answer(self) -> int:
        """Maximum tokens of an answer."""
        return min(_MAX_ANSWER, self.context // _ANSWER_SHARE)


@dataclass(frozen=True)
class LaunchSettings:
    """Options and variables of a coding agent's process."""

    options: Sequence[str] = ()
    """Options before the user's arguments."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of the environment, without the key."""


@dataclass(frozen=True, kw_only=True)
class CodingAgent:
    name: str
    """Argument of `stoker launch`."""
    title: str
    program: str
    install: str
    """Command that installs the program."""
    path: str
    """Path of the API that it calls."""
    first_tokens: int
    """Tokens of its first request, by a tokenizer of 131,000 tokens."""
    key_variable: str
    """Variable with the API key."""
    removed: Sequence[str] = ()
    """Variables that would send its calls to another server."""
    start: Callable[[LaunchTarget], LaunchSettings]


def _claude(target: LaunchTarget) -> LaunchSettings:
    models = ("", "DEFAULT_HAIKU_", "DEFAULT_SONNET_", "DEFAULT_OPUS_", "DEFAULT_FABLE_")
    variables = {
        "ANTHROPIC_BASE_URL": target.base_url,
        **{f"ANTHROPIC_{name}MODEL": target.model for name in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.answer),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return LaunchSettings(variables=variables)


def _codex(target: LaunchTarget) -> LaunchSettings:
    provider = "model_providers.stoker"
    settings = {
        "model": target.model,
        "model_provider": "stoker",
        f"{provider}.name": "Stoker",
        f"{provider}.base_url": f"{target.base_url}/v1",
        f"{provider}.env_key": KEY_VARIABLE,
        f"{provider}.wire_api": "responses",
        "model_context_window": target.context,
    }
    # JSON's texts, numbers and truth values are TOML's.
    pairs = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return LaunchSettings(options=[part for pair in pairs for part in ("-c", pair)])


def _opencode(target: LaunchTarget) -> LaunchSettings:
    model = f"stoker/{target.model}"
    limit = {"context": target.context, "output": target.answer}
    config = {
        "model": model,
        "small_model": model,
        "share": "disabled",
        "provider": {
            "stoker": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Stoker",
                "options": {
                    "baseURL": f"{target.base_url}/v1",
                    "apiKey": f"{{env:{KEY_VARIABLE}}}",
                },
                "models": {target.model: {"name": target.model, "limit": limit}},
            }
        },
    }
    return LaunchSettings(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


CODING_AGENTS: Mapping[str, CodingAgent] = {
    agent.name: agent
    for agent in (
        CodingAgent(
            name="claude",
            title="Claude Code",
            program="claude",
            install="npm install -g @anthropic-ai/claude-code",
            path="/v1/messages",
            first_tokens=12_000,
            key_variable="ANTHROPIC_AUTH_TOKEN",
            removed=(
                "ANTHROPIC_API_KEY",
                "CLAUDE_CODE_USE_BEDROCK",
                "CLAUDE_CODE_USE_FOUNDRY",
                "CLAUDE_CODE_USE_MANTLE",
                "CLAUDE_CODE_USE_VERTEX",
            ),
            start=_claude,
        ),
        CodingAgent(
            name="codex",
            title="Codex",
            program="codex",
            install="npm install -g @openai/codex",
            path="/v1/responses",
            first_tokens=6_000,
            key_variable=KEY_VARIABLE,
            start=_codex,
        ),
        CodingAgent(
            name="opencode",
            title="opencode",
            program="opencode",
            install="npm install -g opencode-ai",
            path="/v1/chat/completions",
            first_tokens=8_000,
            key_variable=KEY_VARIABLE,
            start=_opencode,
        ),
    )
}
"""Maps the argument of `stoker launch` to the coding agent."""
