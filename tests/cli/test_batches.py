"""`stoker batch` with a real server and real models."""

import json
from pathlib import Path
from typing import Any

import pytest

import stoker.demo
from stoker.cli import batch_input
from tests.cli.support import Cli, account_cli
from tests.cli.terminal import Terminal
from tests.cli.test_completion import completed
from tests.support.deploying import deploy
from tests.support.server import Server

MODELS = Path(stoker.demo.__file__).parent / "models"
EMBEDDINGS, CHAT = "/v1/embeddings", "/v1/chat/completions"
SENTIMENT = "/v1/classifications/text"
TEXTS = ["What a wonderful day", "The food was cold and bad", "Ünïcode 日本語 is fine"]
SLOW_TOKENS = 400


@pytest.fixture(scope="module")
def team(server: Server) -> Cli:
    """Returns the command of an account with an encoder, a chat model and a classifier."""
    server.wait_ready()
    cli = account_cli(server, "batches")
    with server.client(cli.key) as client:
        deploy(client, MODELS / "tiny-encoder", "embed")
        deploy(client, MODELS / "tiny-chat", "chat", dtype="float32")
        deploy(client, MODELS / "tiny-sentiment", "mood")
    return cli


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs commands in a folder of this test, because results are saved in the current one."""
    monkeypatch.chdir(tmp_path)


def written(name: str, *lines: Any) -> str:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path(name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return name


def request(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def rows(name: str) -> dict[str, Any]:
    """Returns the lines of a result file by their `custom_id`."""
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def answers(name: str) -> dict[str, Any]:
    return {key: line["response"]["body"] for key, line in rows(name).items()}


def called(server: Server, cli: Cli, path: str, body: dict[str, Any]) -> Any:
    with server.client(cli.key) as client:
        return client.post(path, json=body).raise_for_status().json()


def assert_same(given: Any, single: Any) -> None:
    """Compares labels exactly and scores up to the rounding of batches."""
    assert [label["label"] for label in given] == [label["label"] for label in single]
    scores = [label["score"] for label in single]
    assert [label["score"] for label in given] == pytest.approx(scores, abs=1e-5)


def long_chat(count: int) -> str:
    messages = [{"role": "user", "content": "hello"}]
    body = {"messages": messages, "max_tokens": SLOW_TOKENS, "min_tokens": SLOW_TOKENS}
    return written(
        "long.jsonl", *(request(str(n), CHAT, model="chat", **body) for n in range(count))
    )


class TestRun:
    def test_requests_are_answered_as_single_calls(self, team: Cli, server: Server) -> None:
        file = written(
            "mood.jsonl",
            *(request(f"t{n}", SENTIMENT, model="mood", inputs=t) for n, t in enumerate(TEXTS)),
        )
        done = team.run("batch", "run", file, "--metadata", "night=7")
        assert done.returncode == 0, done.stderr
        assert "3 of 3 completed, 0 failed" in done.stdout and "night=7" in done.stdout
        assert "Saved the answers to mood.output.jsonl." in done.stderr
        assert not Path("mood.errors.jsonl").exists()
        given = answers("mood.output.jsonl")
        assert list(given) == ["t0", "t1", "t2"]
        for number, text in enumerate(TEXTS):
            body = {"model": "mood", "inputs": text}
            assert_same(given[f"t{number}"], called(server, team, SENTIMENT, body))

    def test_texts_have_line_numbers(self, team: Cli, server: Server) -> None:
        file = written("texts.txt", TEXTS[0], "", *TEXTS[1:])
        done = team.run("batches", "run", file, "--model", "mood", "-o", "out", "--errors", "err")
        assert done.returncode == 0, done.stderr
        given = answers("out")
        assert list(given) == ["1", "3", "4"]
        for number, text in zip(given, TEXTS, strict=True):
            single = called(server, team, SENTIMENT, {"model": "mood", "inputs": text})
            assert_same(given[number], single)

    def test_texts_are_embedded(self, team: Cli, server: Server) -> None:
        file = written("texts.txt", *TEXTS)
        batch = team.json("batch", "run", file, "--model", "embed", "--endpoint", EMBEDDINGS)
        assert batch["output_path"] == "texts.output.jsonl" and batch["error_path"] is None
        given = answers(batch["output_path"])
        for number, text in enumerate(TEXTS, 1):
            single = called(server, team, EMBEDDINGS, {"model": "embed", "input": text})
            vector = given[str(number)]["data"][0]["embedding"]
            assert vector == pytest.approx(single["data"][0]["embedding"], abs=1e-5)

    def test_bodies_are_completed(self, team: Cli, server: Server) -> None:
        question = [{"role": "user", "content": "hello"}]
        file = written(
            "chat.jsonl", {"messages": question}, {"messages": question, "max_tokens": 3}
        )
        options = (
            "--model",
            "chat",
            "--endpoint",
            CHAT,
            "-p",
            "max_tokens=5",
            "-p",
            "temperature=0",
        )
        done = team.run("batch", "run", file, *options)
        assert done.returncode == 0, done.stderr
        given = answers("chat.output.jsonl")
        for number, most in (("1", 5), ("2", 3)):
            body = {"model": "chat", "messages": question, "max_tokens": most, "temperature": 0}
            single = called(server, team, CHAT, body)
            assert given[number]["choices"] == single["choices"]
            assert given[number]["usage"]["completion_tokens"] == most

    def test_the_model_is_filled_in(self, team: Cli) -> None:
        file = written("one.jsonl", request("a", SENTIMENT, inputs="good"))
        assert team.json("batch", "run", file, "--model", "mood")["model"] == "mood"

    def test_failed_lines_are_saved(self, team: Cli) -> None:
        file = written(
            "mixed.jsonl",
            request("good", SENTIMENT, model="mood", inputs="good"),
            request("bad", SENTIMENT, model="mood", inputs=7),
        )
        done = team.run("batch", "run", file)
        assert done.returncode == 1
        assert "1 of 2 completed, 1 failed" in done.stdout
        assert [*rows("mixed.output.jsonl")] == ["good"]
        [line] = rows("mixed.errors.jsonl").values()
        assert line["custom_id"] == "bad" and line["response"]["status_code"] == 400

    def test_errors_of_the_server_have_line_numbers(self, team: Cli) -> None:
        long = "x" * (5 << 20)
        file = written(
            "large.jsonl",
            request("a", SENTIMENT, model="mood", inputs="good"),
            request("b", SENTIMENT, model="mood", inputs=long),
        )
        done = team.run("batch", "run", file)
        assert done.returncode == 1
        assert "line 2: The line is larger than 4 MiB." in done.stderr
        [batch] = [b for b in team.json("batch", "list") if b["status"] == "failed"]
        assert "line 2: " in team.run("batch", "show", batch["id"]).stderr


class TestInvalidInput:
    @pytest.mark.parametrize(
        ("lines", "options", "message"),
        [
            (['{"custom_id": 1'], (), "'bad.jsonl', line 1: The line is not valid JSON"),
            (["hello"], (), "line 1: The line is not valid JSON"),
            ([], (), "has no line"),
            (
                [request("a", EMBEDDINGS, model="embed"), "{"],
                (),
                "line 2: The line is not valid JSON",
            ),
            (
                [
                    request("a", EMBEDDINGS, model="embed"),
                    "",
                    request("a", EMBEDDINGS, model="embed"),
                ],
                (),
                "line 3: Line 1 has the same 'custom_id', 'a'.",
            ),
            (
                [request("a", EMBEDDINGS), request("b", EMBEDDINGS, model="chat")],
                ("--model", "embed"),
                "line 2: 'body.model' is 'chat', but --model is 'embed'.",
            ),
            (
                [request("a", EMBEDDINGS, model="embed"), request("b", EMBEDDINGS, model="mood")],
                (),
                "line 2: All lines must name the same model. The first names 'embed'.",
            ),
            (
                [request("a", EMBEDDINGS, model="embed"), request("b", CHAT, model="embed")],
                (),
                f"line 2: 'url' is '{CHAT}', but the batch calls {EMBEDDINGS}.",
            ),
            (
                [request("a", CHAT, model="chat", stream=True)],
                (),
                "line 1: Answers of a batch are not streamed",
            ),
            (
                [request("a", EMBEDDINGS, model="embed"), {"custom_id": "b", "body": {}}],
                (),
                "line 2: The line is not a request: Object missing required field `method`",
            ),
            ([{"messages": []}], ("--model", "embed", "--endpoint", CHAT), "does not serve embed"),
            ([{"input": "x"}], ("--model", "none"), "Model not found"),
            ([{"input": "x"}], (), "The lines name no endpoint."),
        ],
    )
    def test_nothing_is_uploaded(
        self, team: Cli, lines: list[Any], options: tuple[str, ...], message: str
    ) -> None:
        before = team.json("files", "list")
        done = team.run("batch", "run", written("bad.jsonl", *lines), *options)
        assert message in done.stderr
        assert done.returncode == (1 if "none" in options else 2)
        assert team.json("files", "list") == before

    def test_texts_need_an_endpoint_for_texts(self, team: Cli) -> None:
        file = written("texts.txt", "a")
        done = team.run("batch", "run", file, "--model", "embed", "--endpoint", "/v1/similarity")
        assert done.returncode == 2 and "takes more than a text" in done.stderr

    def test_results_do_not_replace_the_input(self, team: Cli) -> None:
        file = written("same.jsonl", request("a", EMBEDDINGS, model="embed", input="x"))
        for options in (("-o", file), ("-o", "x", "--errors", "./x")):
            assert team.run("batch", "run", file, *options).returncode == 2

    def test_long_lines_are_not_held(self, tmp_path: Path) -> None:
        path = tmp_path / "long.jsonl"
        with path.open("wb") as file:
            file.write(json.dumps(request("a", CHAT, model="m")).encode() + b"\n")
            file.truncate(batch_input.MOST_LINE_BYTES * 2)
        lines = batch_input.BatchLines(path, batch_input.LineFormat.REQUESTS, CHAT, None)
        assert lines.check().faults == ["line 2: The line is larger than 64 MiB."]


class TestLater:
    def test_ctrl_c_ends_the_wait_only(self, team: Cli, tmp_path: Path) -> None:
        file = long_chat(40)
        with Terminal(team, "batch", "run", file, columns=120, folder=tmp_path) as terminal:
            terminal.until("/40 lines")
            terminal.send("\x03")
            shown = terminal.rest()
            assert terminal.code() == 130
        assert "The batch continues. See it with: stoker batch show batch_" in shown
        [batch] = [b for b in team.json("batch", "list") if b["request_counts"]["total"] == 40]
        assert f"stoker batch wait {batch['id']}" in shown
        assert completed(team, "batch", "show", "batch_")
        assert batch["id"] in completed(team, "batch", "cancel", batch["id"][:-1])
        done = team.json("batch", "wait", batch["id"])
        assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        assert len(answers(f"{batch['id']}.output.jsonl")) == 40

    def test_a_batch_is_cancelled(self, team: Cli) -> None:
        batch = team.json("batch", "run", long_chat(400), "--no-wait")["id"]
        early = team.run("batch", "download", batch)
        assert early.returncode == 1 and "stoker batch wait" in early.stderr
        refused = team.run("batch", "cancel", batch)
        assert refused.returncode == 2 and "Add --yes" in refused.stderr
        assert team.json("batch", "cancel", batch, "--yes")["status"] == "cancelling"
        done = team.run("batch", "wait", batch)
        assert done.returncode == 1 and "cancelled" in done.stdout
        counts = team.json("batch", "show", batch)["request_counts"]
        assert counts["completed"] < 400 and counts["completed"] + counts["failed"] == 400
        assert len(rows(f"{batch}.errors.jsonl")) == counts["failed"]
        again = team.run("batch", "cancel", batch, "--yes")
        assert again.returncode == 0, again.stderr

    def test_results_are_downloaded_again(self, team: Cli) -> None:
        file = written("one.jsonl", request("a", SENTIMENT, model="mood", inputs="good"))
        batch = team.json("batch", "run", file)
        first = Path("one.output.jsonl").read_text()
        done = team.json("batch", "download", batch["id"], "-o", "again.jsonl")
        assert done["output_path"] == "again.jsonl" and Path("again.jsonl").read_text() == first

    def test_an_unknown_batch(self, team: Cli) -> None:
        done = team.run("batch", "wait", "batch_none")
        assert done.returncode == 1 and "Batch not found" in done.stderr
