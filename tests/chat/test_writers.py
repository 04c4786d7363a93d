import json
import math
import random
from typing import Any

import pytest

from stoker.models.chat.answers import writer
from stoker.models.chat.answers.answer_events import (
    AnswerWriter,
    CallArguments,
    CallBegun,
    Echoed,
    Event,
    Finished,
    Text,
    TokenLogprob,
    Usage,
)
from stoker.wire.generation_request import Conversation, Generation, Sampling

HEAD = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "acme/tiny"}
USAGE = Usage(prompt=12, cached=4, completion=30, reasoning=5)
COUNTS = {
    "prompt_tokens": 12,
    "completion_tokens": 30,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


def made(generation: Generation) -> AnswerWriter:
    """Returns the writer of a request's answers."""
    return writer(generation, generation.sampling)


def chat(**more: Any) -> Generation:
    answer = HEAD | more.pop("answer", {})
    sampling = Sampling(logprobs=more.pop("logprobs", None))
    prompt = Conversation(messages=[{"role": "user", "content": "Hi"}])
    return Generation(api="chat", prompts=[prompt], sampling=sampling, answer=answer, **more)


def completion(*prompts: Any, **more: Any) -> Generation:
    answer = HEAD | more.pop("answer", {})
    sampling = Sampling(logprobs=more.pop("logprobs", None))
    prompt_texts = list(prompts) or ["Once"]
    return Generation(
        api="completions", prompts=prompt_texts, sampling=sampling, answer=answer, **more
    )


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """Parses a stream's events as a client does."""
    assert stream.endswith(b"\n\n")
    blocks = stream.decode().removesuffix("\n\n").split("\n\n")
    data: list[str] = []
    for block in blocks:
        assert "\n" not in block, "an event of more than one line"
        if not block.startswith(":"):
            data.append(block.removeprefix("data: "))
    if data[-1] == "[DONE]":
        data.pop()
    assert "[DONE]" not in data
    return [json.loads(line) for line in data]


def logprob(text: str, value: float = -0.5, *top: tuple[str, float]) -> TokenLogprob:
    alternatives = tuple(TokenLogprob(other, other.encode(), at) for other, at in top)
    return TokenLogprob(text, text.encode(), value, alternatives)


def events(seed: int) -> list[Event]:
    """Returns a random answer in any pieces: reasoning, text, calls and text."""
    chance = random.Random(seed)
    words = ["Hello ", "wörld ", "😀", '"quo\\ted"\n\n', "data: [DONE]\n\n", " ", "\u2028", "\x00"]
    answer: list[Event] = []
    for _ in range(chance.randint(0, 3)):
        answer.append(Text(chance.choice(words), reasoning=True))
    for _ in range(chance.randint(0, 5)):
        text = chance.choice(words)
        answer.append(Text(text, logprobs=[logprob(text, -chance.random())]))
    calls = chance.randint(0, 3)
    for index in range(calls):
        answer.append(CallBegun(index, f"call_{index}", f"get_{index}"))
        arguments = json.dumps({"city": chance.choice(words)}, ensure_ascii=False)
        cut = chance.randint(0, len(arguments))
        answer += [
            CallArguments(index, part) for part in (arguments[:cut], arguments[cut:]) if part
        ]
        if chance.random() < 0.3:
            answer.append(Text("after "))
    answer.append(Finished("tool_calls" if calls else chance.choice(["stop", "length"])))
    return answer


def written(one: AnswerWriter, choices: list[list[Event]], seed: int = 0) -> bytes:
    """Returns the stream of several answers that are written at the same time."""
    chance = random.Random(seed)
    stream = one.begin(USAGE)
    pending = [list(events) for events in choices]
    while any(pending):
        choice = chance.choice([at for at, events in enumerate(pending) if events])
        size = chance.randint(1, len(pending[choice]))
        stream += one.add(choice, pending[choice][:size])
        del pending[choice][:size]
    return stream + one.end(USAGE)


def whole(asked: Generation, choices: list[list[Event]], seed: int = 0) -> dict[str, Any]:
    answer_writer = made(asked)
    for choice, answer in enumerate(choices):
        assert answer_writer.add(choice, answer) == b""
    return json.loads(answer_writer.end(USAGE))


class Message:
    """A message as OpenAI's clients join it. Every string of the deltas is appended."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.calls: list[dict[str, str]] = []
        self.logprobs: list[Any] = []
        self.finish: list[str] = []

    def add(self, choice: dict[str, Any]) -> None:
        assert not self.finish, "a chunk after the last"
        delta: dict[str, Any] = choice["delta"]
        calls: list[dict[str, Any]] = delta.get("tool_calls", [])
        for name in ("role", "content", "reasoning_content"):
            if name in delta:
                self.fields[name] = self.fields.get(name, "") + delta[name]
        for call in calls:
            if call["index"] == len(self.calls):
                self.calls.append({"id": "", "type": "", "name": "", "arguments": ""})
            joined_call: dict[str, str] = self.calls[int(call["index"])]
            joined_call["id"] += call.get("id", "")
            joined_call["type"] += call.get("type", "")
            for name, value in call["function"].items():
                joined_call[name] += value
        if choice["logprobs"]:
            self.logprobs += choice["logprobs"]["content"]
        if choice["finish_reason"]:
            self.finish.append(choice["finish_reason"])


class TestChat:
    @pytest.mark.parametrize("seed", range(60))
    def test_the_stream_joins_to_the_whole(self, seed: int) -> None:
        answers = [events(seed), events(seed + 1000)]
        body = whole(chat(n=2, logprobs=2), answers)
        stream = written(made(chat(n=2, logprobs=2, stream=True)), answers, seed)
        messages = [Message(), Message()]
        for chunk in parsed(stream):
            assert {name: chunk[name] for name in HEAD} == HEAD
            assert chunk["object"] == "chat.completion.chunk"
            (choice,) = chunk["choices"]
            messages[int(choice["index"])].add(choice)
        for joined, choice in zip(messages, body["choices"], strict=True):
            message = choice["message"]
            assert joined.fields["role"] == message["role"] == "assistant"
            content = joined.fields["content"]
            # Blanks next to calls do not count as text.
            silent = bool(joined.calls) and not content.strip()
            assert message["content"] == (None if silent else content)
            reasoning = joined.fields.get("reasoning_content")
            assert message.get("reasoning_content") == (reasoning and reasoning.strip())
            calls = [
                {"id": call["id"], "type": call["type"], **call["function"]}
                for call in message.get("tool_calls", [])
            ]
            assert joined.calls == calls
            assert joined.logprobs == choice["logprobs"]["content"]
            assert joined.finish == [choice["finish_reason"]]

    def test_the_whole(self) -> None:
        answer: list[Event] = [
            Text("Hm. ", reasoning=True),
            Text("It is "),
            Text("cold."),
            CallBegun(0, "call_a", "get_weather"),
            CallArguments(0, '{"city": '),
            CallArguments(0, '"Paris"}'),
            Finished("tool_calls"),
        ]
        assert whole(chat(), [answer]) == {
            **HEAD,
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "It is cold.",
                        "refusal": None,
                        "reasoning_content": "Hm.",
                        "tool_calls": [
                            {
                                "id": "call_a",
                                "type": "function",
                                "function": {
                                    "name": "get_weather",
                                    "arguments": '{"city": "Paris"}',
                                },
                            }
                        ],
                    },
                    "logprobs": None,
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": COUNTS,
        }

    def test_the_stream(self) -> None:
        answer: list[Event] = [Text("Hi"), CallBegun(0, "call_a", "f"), CallArguments(0, "{}")]
        chunks = parsed(written(made(chat(stream=True)), [[*answer, Finished("tool_calls")]]))
        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
            {"role": "assistant", "content": "", "refusal": None},
            {"content": "Hi"},
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "f", "arguments": ""},
                    }
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
            {},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [
            *[None] * 4,
            "tool_calls",
        ]
        assert all("usage" not in chunk for chunk in chunks)

    def test_the_stream_ends_with_done(self) -> None:
        stream = written(made(chat(stream=True)), [[Finished("stop")]])
        assert stream.endswith(b"data: [DONE]\n\n")

    def test_usage_where_it_was_asked_for(self) -> None:
        generation = chat(stream=True, answer={"include_usage": True})
        *chunks, last = parsed(written(made(generation), [[Text("a"), Finished("stop")]]))
        assert all(chunk["usage"] is None for chunk in chunks)
        assert (last["choices"], last["usage"]) == ([], COUNTS)

    def test_logprobs(self) -> None:
        text = Text("né", logprobs=[logprob("né", -0.25, ("né", -0.25), ("no", -math.inf))])
        body = whole(chat(logprobs=2), [[text, Finished("stop")]])
        assert body["choices"][0]["logprobs"] == {
            "content": [
                {
                    "token": "né",
                    "logprob": -0.25,
                    "bytes": [110, 195, 169],
                    "top_logprobs": [
                        {"token": "né", "logprob": -0.25, "bytes": [110, 195, 169]},
                        {"token": "no", "logprob": -9999.0, "bytes": [110, 111]},
                    ],
                }
            ],
            "refusal": None,
        }

    def test_a_failure(self) -> None:
        chat_writer = made(chat(stream=True))
        stream = (
            chat_writer.begin(USAGE)
            + chat_writer.add(0, [Text("Hel")])
            + chat_writer.fail("inference_failed", "It broke.")
        )
        *_, last = parsed(stream)
        assert last["error"]["code"] == "inference_failed"
        assert last["error"]["message"] == "It broke."
        assert b"[DONE]" not in stream

    def test_an_empty_answer(self) -> None:
        body = whole(chat(), [[Finished("stop")]])
        assert body["choices"][0]["message"]["content"] == ""


class TestCompletions:
    @pytest.mark.parametrize("seed", range(40))
    @pytest.mark.parametrize("echo", [False, True])
    def test_the_stream_joins_to_the_whole(self, seed: int, echo: bool) -> None:
        answers: list[list[Event]] = [
            [event for event in events(seed + 100 * at) if not isinstance(event, CallBegun)]
            for at in range(4)
        ]
        answers = [
            [event for event in answer if not isinstance(event, CallArguments)]
            for answer in answers
        ]
        wishes: dict[str, Any] = {"n": 2, "logprobs": 1}
        prompts = ("Once ", "Twïce ")
        if echo:
            for at, answer in enumerate(answers):
                tokens = [
                    logprob(entry, -0.5 * place) for place, entry in enumerate(prompts[at // 2])
                ]
                texts = [entry.text for entry in tokens]
                answer.insert(0, Echoed(prompts[at // 2], texts, range(9), tokens[1:]))
        body = whole(completion(*prompts, **wishes), answers)
        stream = written(made(completion(*prompts, stream=True, **wishes)), answers, seed)
        texts, finish = [""] * 4, [""] * 4
        logprobs: list[dict[str, list[Any]]] = [
            {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
            for _ in range(4)
        ]
        for chunk in parsed(stream):
            assert chunk["object"] == "text_completion"
            (choice,) = chunk["choices"]
            at = choice["index"]
            assert not finish[at], "a chunk after the last"
            texts[at] += choice["text"]
            finish[at] += choice["finish_reason"] or ""
            expected_logprobs: dict[str, list[Any]] = choice["logprobs"] or {}
            for name, values in expected_logprobs.items():
                logprobs[at][name] += values
        assert [entry["text"] for entry in body["choices"]] == texts
        assert [entry["finish_reason"] for entry in body["choices"]] == finish
        assert [entry["logprobs"] for entry in body["choices"]] == logprobs
        assert [entry["index"] for entry in body["choices"]] == [0, 1, 2, 3]
        for at, text in enumerate(texts):
            assert text.startswith(prompts[at // 2]) is echo or not echo
        assert body["usage"] == COUNTS

    def test_the_whole(self) -> None:
        answer: list[Event] = [
            Text("ab", logprobs=[logprob("a", -0.5, ("x", -1.5)), logprob("b", -0.25)]),
            Text("c", logprobs=[logprob("c", -1.0)]),
            Finished("length"),
        ]
        tokens = [logprob("nc", -2.0, ("x", -0.125)), logprob("e", -0.75)]
        answer.insert(0, Echoed("Once", ["O", "nc", "e"], [0, 1, 3], tokens))
        body = whole(completion("Once", logprobs=1), [answer])
        assert body == {
            **HEAD,
            "object": "text_completion",
            "choices": [
                {
                    "index": 0,
                    "text": "Onceabc",
                    "logprobs": {
                        "tokens": ["O", "nc", "e", "a", "b", "c"],
                        "token_logprobs": [None, -2.0, -0.75, -0.5, -0.25, -1.0],
                        "top_logprobs": [
                            None,
                            {"x": -0.125, "nc": -2.0},
                            {"e": -0.75},
                            {"x": -1.5, "a": -0.5},
                            {"b": -0.25},
                            {"c": -1.0},
                        ],
                        "text_offset": [0, 1, 3, 4, 5, 6],
                    },
                    "finish_reason": "length",
                }
            ],
            "usage": COUNTS,
        }

    def test_a_prompt_alone(self) -> None:
        """A prompt is echoed without an answer, with and without log probabilities."""
        answer: list[Event] = [Echoed("Once"), Finished("length")]
        (choice,) = whole(completion("Once"), [answer])["choices"]
        assert (choice["text"], choice["logprobs"]) == ("Once", None)
        answer = [Echoed("O", ["O"], [0]), Finished("length")]
        (choice,) = whole(completion("O", logprobs=0), [answer])["choices"]
        assert choice["logprobs"] == {
            "tokens": ["O"],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }

    def test_halves_of_characters(self) -> None:
        """Parts of characters share one text, and the best one represents it.

        Otherwise a worse token would seem the best.
        """
        text = Text("�", logprobs=[logprob("�", -3.0, ("�", -0.25))])
        body = whole(completion(logprobs=1), [[text, Finished("stop")]])
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-3.0]
        assert logprobs["top_logprobs"] == [{"�": -0.25}]

    def test_what_is_out_of_the_question_is_a_number(self) -> None:
        """An impossible token has a number, as in chat.

        A client's log probabilities are numbers, and JSON has no infinity.
        """
        text = Text("a", logprobs=[logprob("a", -math.inf, ("b", -math.inf))])
        body = whole(completion(logprobs=1), [[text, Finished("stop")]])
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-9999.0]
        assert logprobs["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]

    def test_usage_where_it_was_asked_for(self) -> None:
        generation = completion(stream=True, answer={"include_usage": True})
        *chunks, last = parsed(written(made(generation), [[Text("a"), Finished("stop")]]))
        assert all(chunk["usage"] is None for chunk in chunks)
        assert (last["choices"], last["usage"]) == ([], COUNTS)

    def test_something_comes_at_once(self) -> None:
        assert made(completion(stream=True)).begin(USAGE) == b": accepted\n\n"

    def test_a_failure(self) -> None:
        completion_writer = made(completion(stream=True))
        *_, last = parsed(
            completion_writer.begin(USAGE) + completion_writer.fail("inference_failed", "It broke.")
        )
        assert last["error"]["message"] == "It broke."
