"""Tool calls of public chat templates on a real server, with scripted models."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chat.test_chat_templates import MARKS
from tests.support.deploying import deploy
from tests.support.scripted import scripted_model
from tests.support.server import Server
from tools.chat_templates import FOLDER, templates

TEMPLATES = templates()
pytestmark = pytest.mark.skipif(
    not TEMPLATES, reason=f"{FOLDER} has no chat templates: `make chat-templates` unpacks them"
)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City."},
                "days": {"type": "integer", "description": "Days."},
            },
            "required": ["city"],
        },
    },
}
Calls = list[tuple[str, dict[str, Any]]]
PARIS: Calls = [("get_weather", {"city": "Paris"})]
TWO: Calls = [("get_weather", {"city": "5", "days": 3}), ("get_weather", {"city": "é </b>\n}"})]
QWEN = "Qwen3-Coder"
MISTRAL = "mistralai-Mistral-Nemo-Instruct-2407"
LLAMA = "meta-llama-Llama-3.1-8B-Instruct"
OSS = "openai-gpt-oss-120b"
PLAIN = "no-calls"


def _qwen(city: str, *more: str) -> str:
    inner = "".join(f"<parameter={part}\n</parameter>\n" for part in (f"city>\n{city}", *more))
    return f"<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>"


def _list(calls: Calls) -> str:
    each = [json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in calls]
    return f"[TOOL_CALLS][{', '.join(each)}]"


_ANALYSIS = "<|channel|>analysis<|message|>It asks.<|end|><|start|>assistant"
_TO = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
WRITES: Mapping[str, Mapping[str, tuple[str, str, str, Calls]]] = {
    QWEN: {
        "one": (_qwen("Paris"), "", "", PARIS),
        "two": ("\n".join([_qwen("5", "days>\n3"), _qwen("é </b>\n}")]), "", "", TWO),
        "text": (f"I look.\n\n{_qwen('Paris')}", "I look.", "", PARIS),
    },
    MISTRAL: {"one": (_list(PARIS), "", "", PARIS), "two": (_list(TWO), "", "", TWO)},
    LLAMA: {
        "one": ('{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", PARIS),
        "two": (
            "; ".join(json.dumps({"name": n, "parameters": a}, ensure_ascii=False) for n, a in TWO),
            "",
            "",
            TWO,
        ),
        "text": ('{"city": "Paris"} and [1].', '{"city": "Paris"} and [1].', "", []),
    },
    OSS: {
        "one": (_ANALYSIS + _TO + '{"city":"Paris"}<|call|>', "", "It asks.", PARIS),
        "text": (f"{_ANALYSIS}<|channel|>final<|message|>Hello!", "Hello!", "It asks.", []),
    },
    PLAIN: {"one": (_qwen("Paris"), _qwen("Paris"), "", [])},
}
_CASES = [(name, case) for name, cases in WRITES.items() for case in cases]


class Models:
    """The deployed scripted models."""

    def __init__(self, client: httpx.Client, folder: Path) -> None:
        self.client, self._says = client, dict[tuple[str, str], str]()
        self.deployments: dict[str, Any] = {}
        for name, cases in WRITES.items():
            texts = {case: text for case, (text, *_) in cases.items()}
            marks = sorted({mark for text in texts.values() for mark in MARKS.findall(text)})
            template = TEMPLATES.get(name, "{% for tool in tools or [] %}{{ tool }}{% endfor %}")
            places = scripted_model(
                folder / name, list(texts.values()), marks=marks, chat_template=template
            )
            self._says |= {(name, case): places[text] for case, text in texts.items()}
            self.deployments[name] = deploy(client, folder / name, name)

    def ask(self, name: str, case: str, **more: Any) -> httpx.Response:
        message = {"role": "user", "content": self._says[name, case]}
        body = {"model": name, "temperature": 0, "messages": [message], "tools": [WEATHER], **more}
        return self.client.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def models(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    server.wait_ready()
    with server.account("formats") as client:
        yield Models(client, tmp_path_factory.mktemp("formats"))


def answer(response: httpx.Response) -> tuple[str, str, Calls]:
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    return _parts(message)


def _parts(message: Mapping[str, Any]) -> tuple[str, str, Calls]:
    functions = [call["function"] for call in message.get("tool_calls") or []]
    calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
    text, thought = message.get("content") or "", message.get("reasoning_content") or ""
    return text.strip(), thought.strip(), calls


def streamed(response: httpx.Response) -> tuple[str, str, Calls]:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls") or []:
                if "id" in call:
                    message["tool_calls"].append({"function": {**call["function"]}})
                else:
                    place = message["tool_calls"][call["index"]]
                    place["function"]["arguments"] += call["function"]["arguments"]
    return _parts(message)


@pytest.mark.parametrize(("name", "case"), _CASES)
def test_whole_and_streamed(models: Models, name: str, case: str) -> None:
    _, *expected = WRITES[name][case]
    assert answer(models.ask(name, case)) == tuple(expected)
    if case != "one":
        assert streamed(models.ask(name, case, stream=True)) == tuple(expected)


@pytest.mark.parametrize("name", [QWEN, MISTRAL, LLAMA, OSS])
def test_required(models: Models, name: str) -> None:
    _, _, thought, calls = WRITES[name]["one"]
    assert answer(models.ask(name, "one", tool_choice="required")) == ("", thought, calls)


@pytest.mark.parametrize("name", [QWEN, MISTRAL, LLAMA])
def test_one_call_and_no_more(models: Models, name: str) -> None:
    parsed = answer(models.ask(name, "two", parallel_tool_calls=False, max_tokens=300))
    assert parsed[2] == TWO[:1]


def test_reasoning_without_tools(models: Models) -> None:
    assert answer(models.ask(OSS, "text", tools=None)) == ("Hello!", "It asks.", [])


def test_without_a_format_calls_stay_text_and_the_deployment_says_so(models: Models) -> None:
    refused = models.ask(PLAIN, "one", tool_choice="required")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"
    identifier = models.deployments[PLAIN]["id"]
    notices = models.client.get(f"/v1/deployments/{identifier}").json()["notices"]
    assert [notice["code"] for notice in notices] == ["tool_calls_not_read"]
    known = models.client.get(f"/v1/deployments/{models.deployments[QWEN]['id']}").json()["notices"]
    assert known == []


def test_a_strict_text_that_the_notation_cannot_hold_to_is_refused(models: Models) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^P"}},
        "required": ["city"],
    }
    function = {"name": "get_weather", "strict": True, "parameters": parameters}
    refused = models.ask(QWEN, "one", tools=[{"type": "function", "function": function}])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[0].function.parameters"
    assert "'pattern'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", [MISTRAL, LLAMA])
def test_two_calls_are_accepted_in_the_next_turn(models: Models, name: str) -> None:
    """Templates may accept only ids of nine letters, or one call per message."""
    message = models.ask(name, "two").json()["choices"][0]["message"]
    outputs = [
        {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}
        for call in message["tool_calls"]
    ]
    messages = [{"role": "user", "content": "Weather?"}, message, *outputs]
    response = models.ask(name, "two", messages=messages, max_tokens=1, tools=None)
    assert response.status_code == 200, response.text
