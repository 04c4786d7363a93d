"""Prompts of `/v1/completions` that are echoed and scored, compared with torch, on both engines."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import openai
import pytest
import torch
from openai.types import Completion
from openai.types.completion_choice import Logprobs
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.openai.conftest import ANY, ENGINES, MODEL, wait_for_engine
from tests.support.deploying import deploy

TEXT = "The capital of France is Paris. 1, 2, 3,"
ODD = "Zürich 🦊"
"""Text with characters of several tokens."""

library: Any = AutoTokenizer
Scores = Callable[[Sequence[int]], torch.Tensor]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return library.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def scores() -> Scores:
    """Returns a function that computes each token's log probabilities with transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

    def of(tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return torch.log_softmax(model.eval()(torch.tensor([list(tokens)])).logits[0], -1)

    return of


@pytest.fixture(scope="module", params=ENGINES)
def model(request: pytest.FixtureRequest, account: httpx.Client) -> str:
    """Deploys the model in float32 on any processor, for comparison with torch."""
    engine = str(request.param)
    name = f"{engine}-float32"
    identifier = deploy(account, MODEL, name, engine=engine, dtype="float32", readiness="hot")["id"]
    wait_for_engine(account, identifier, engine)
    return name


def complete(sdk: openai.OpenAI, model: str, prompt: Any, **options: Any) -> Completion:
    return sdk.completions.create(model=model, prompt=prompt, echo=True, **options)


def check(
    given: Logprobs | None, tokens: Sequence[int], tokenizer: Any, scores: Scores, top: int
) -> None:
    """Checks the log probabilities of a prompt's tokens."""
    assert given is not None
    assert given.tokens and given.token_logprobs and given.top_logprobs and given.text_offset
    assert len(given.tokens) >= len(tokens)
    assert given.token_logprobs[0] is None and given.top_logprobs[0] is None
    rows = scores(tokens)
    for place in range(1, len(tokens)):
        row = rows[place - 1]
        value = given.token_logprobs[place]
        assert value == pytest.approx(float(row[tokens[place]]), abs=1e-4), place
        best = row.topk(top)
        expected = {given.tokens[place]: float(row[tokens[place]])}
        for token, likelihood in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            # Parts of characters share one text.
            text = tokenizer.decode([token])
            expected[text] = max(likelihood, expected.get(text, likelihood))
        assert given.top_logprobs[place] == pytest.approx(expected, abs=1e-4)


class TestScores:
    @pytest.mark.parametrize("text", [TEXT, ODD, TEXT * 12])
    def test_of_a_text(
        self, sdk: openai.OpenAI, model: str, text: str, tokenizer: Any, scores: Scores
    ) -> None:
        tokens = tokenizer(text)["input_ids"]
        for _ in range(2):
            # The second request finds the whole prompt in the cache.
            completion = complete(sdk, model, text, max_tokens=0, logprobs=2)
            (choice,) = completion.choices
            assert (choice.text, choice.finish_reason) == (text, "length")
            check(choice.logprobs, tokens, tokenizer, scores, 2)
            assert choice.logprobs and choice.logprobs.text_offset and choice.logprobs.tokens
            for start, token in zip(
                choice.logprobs.text_offset, choice.logprobs.tokens, strict=True
            ):
                assert "�" in token or text[start:].startswith(token)
            assert completion.usage is not None
            assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (
                len(tokens),
                0,
            )

    def test_of_tokens(
        self, sdk: openai.OpenAI, model: str, tokenizer: Any, scores: Scores
    ) -> None:
        """Any tokens are scored. Special ones are part of the text."""
        first = tokenizer(TEXT)["input_ids"]
        second = [tokenizer.eos_token_id, *tokenizer(ODD)["input_ids"], 3, 200, 77]
        completion = complete(sdk, model, [first, second], max_tokens=0, logprobs=1)
        for choice, tokens in zip(completion.choices, (first, second), strict=True):
            assert choice.text == tokenizer.decode(tokens)
            check(choice.logprobs, tokens, tokenizer, scores, 1)

    def test_as_an_evaluation_asks(
        self, account: httpx.Client, model: str, tokenizer: Any, scores: Scores
    ) -> None:
        """lm-evaluation-harness's `local-completions` requests receive answers that it can read.

        It reads the likelihood of the text after a context, and whether the model would have
        written that text. For this, the best alternative must equal the token's own number exactly.
        """
        pairs = [(FRANCE, " Paris"), (FRANCE, " Rome"), ("1, 2, 3,", " 4, 5, 6")]
        encoded = [
            (tokenizer(context)["input_ids"], tokenizer(rest)["input_ids"])
            for context, rest in pairs
        ]
        body = {
            "model": model,
            "prompt": [context + rest for context, rest in encoded],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        response = account.post("/v1/completions", json=body)
        for choice, (context, rest) in zip(response.json()["choices"], encoded, strict=True):
            values = choice["logprobs"]["token_logprobs"][len(context) : -1]
            best = choice["logprobs"]["top_logprobs"][len(context) : -1]
            assert len(values) == len(best) == len(rest)
            rows = scores(context + rest)[len(context) - 1 : -1]
            expected = sum(float(row[token]) for row, token in zip(rows, rest, strict=True))
            assert sum(values) == pytest.approx(expected, abs=1e-3)
            greedy = all(
                value == max(alternatives.values())
                for value, alternatives in zip(values, best, strict=True)
            )
            assert greedy == (rows.argmax(-1).tolist() == rest)

    def test_where_the_model_ends_at_once(
        self, account: httpx.Client, model: str, tokenizer: Any, scores: Scores
    ) -> None:
        """The drawn token has its own row: evaluations always leave out the last row."""
        text = "The capital of France is Paris."
        turns = [{"role": "user", "content": "What is the capital of France?"}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        tokens = tokenizer(prompt + text, add_special_tokens=False)["input_ids"]
        body = {"model": model, "prompt": tokens, "max_tokens": 1, "echo": True, "logprobs": 1}
        body["temperature"] = 0
        (choice,) = account.post("/v1/completions", json=body).json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["text"] == tokenizer.decode(tokens)
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(tokens) + 1
        end = float(scores(tokens)[-1, tokenizer.eos_token_id])
        assert logprobs["token_logprobs"][-1] == pytest.approx(end, abs=1e-4)
        assert logprobs["tokens"][-1] == tokenizer.eos_token
        assert logprobs["text_offset"][-1] == len(choice["text"])

    def test_and_the_answer_after_it(
        self, sdk: openai.OpenAI, model: str, tokenizer: Any, scores: Scores
    ) -> None:
        alone = sdk.completions.create(model=model, prompt=TEXT, max_tokens=6, logprobs=2)
        completion = complete(sdk, model, TEXT, max_tokens=6, logprobs=2, n=2)
        tokens = tokenizer(TEXT)["input_ids"]
        for choice in completion.choices:
            assert choice.text == TEXT + alone.choices[0].text
            check(choice.logprobs, tokens, tokenizer, scores, 2)
            ours, theirs = choice.logprobs, alone.choices[0].logprobs
            assert ours and ours.tokens and ours.text_offset and ours.token_logprobs
            assert theirs and theirs.tokens and theirs.text_offset and theirs.token_logprobs
            assert ours.tokens[len(tokens) :] == theirs.tokens
            assert ours.text_offset[len(tokens) :] == [len(TEXT) + at for at in theirs.text_offset]
            assert ours.token_logprobs[len(tokens) :] == pytest.approx(
                theirs.token_logprobs, abs=1e-4
            )

    @pytest.mark.parametrize("options", [{}, {"logprobs": 1}], ids=["plain", "scored"])
    def test_streamed(self, sdk: openai.OpenAI, model: str, options: Any) -> None:
        """The first chunk has the prompt, and all chunks together equal the whole."""
        whole = complete(sdk, model, TEXT, max_tokens=5, **options).choices[0]
        chunks = [
            chunk.choices[0]
            for chunk in complete(sdk, model, TEXT, max_tokens=5, stream=True, **options)  # pyright: ignore[reportUnknownVariableType, reportAttributeAccessIssue]
        ]
        assert chunks[0].text == TEXT
        assert "".join(part.text for part in chunks) == whole.text
        assert chunks[-1].finish_reason == "length"
        if whole.logprobs:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                pieces = [getattr(part.logprobs, name) for part in chunks]
                joined = [value for piece in pieces for value in piece]
                if name in ("tokens", "text_offset"):
                    assert joined == getattr(whole.logprobs, name)
                else:
                    assert len(joined) == len(getattr(whole.logprobs, name))

    def test_nothing_is_drawn(self, sdk: openai.OpenAI, model: str) -> None:
        completion = sdk.completions.create(model=model, prompt=[TEXT, ODD], max_tokens=0)
        assert [choice.text for choice in completion.choices] == ["", ""]
        assert completion.usage is not None and completion.usage.completion_tokens == 0

    def test_echo_of_tokens_alone(self, sdk: openai.OpenAI, model: str, tokenizer: Any) -> None:
        tokens = tokenizer(TEXT)["input_ids"]
        completion = complete(sdk, model, tokens, max_tokens=4)
        assert completion.choices[0].text.startswith(TEXT)
        assert completion.choices[0].logprobs is None

    def test_one_token(self, sdk: openai.OpenAI, model: str, tokenizer: Any) -> None:
        token = tokenizer("1")["input_ids"][0]
        logprobs = complete(sdk, model, [token], max_tokens=0, logprobs=0).choices[0].logprobs
        assert logprobs is not None
        assert (logprobs.tokens, logprobs.token_logprobs) == (["1"], [None])

    def test_to_the_full_length(self, sdk: openai.OpenAI, model: str, tokenizer: Any) -> None:
        (token,) = tokenizer("1")["input_ids"]
        logprobs = (
            complete(sdk, model, [token] * 1023, max_tokens=0, logprobs=0).choices[0].logprobs
        )
        assert logprobs is not None and logprobs.token_logprobs is not None
        assert len(logprobs.token_logprobs) == 1023
        with pytest.raises(openai.BadRequestError) as caught:
            complete(sdk, model, [token] * 1024, max_tokens=0, logprobs=0)
        assert caught.value.code == "context_length_exceeded"

    def test_too_many_at_once(self, account: httpx.Client) -> None:
        body = {"model": ANY, "prompt": [[1] * 1020] * 128, "max_tokens": 1, "n": 2}
        body |= {"echo": True, "logprobs": 1}
        response = account.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt"
        assert "131072" in response.json()["error"]["message"]

    def test_any_tokens(self, account: httpx.Client, tokenizer: Any) -> None:
        """All tokens are accepted in any order, including parts of characters."""
        prompts = [list(range(start, start + 60)) for start in range(0, len(tokenizer) - 60, 60)]
        body = {"model": ANY, "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1}
        response = account.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        for choice, tokens in zip(json.loads(response.content)["choices"], prompts, strict=True):
            assert len(choice["logprobs"]["tokens"]) == len(tokens)
            offsets = choice["logprobs"]["text_offset"]
            assert offsets == sorted(offsets) and offsets[-1] <= len(choice["text"])


FRANCE = "The capital of France is"
