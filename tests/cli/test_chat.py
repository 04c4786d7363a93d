"""`stoker chat` on a real terminal and in a pipe, with a model whose answers are known."""

import json
import re
from pathlib import Path

import pytest

import stoker.demo
from tests.cli.support import Cli, account_cli
from tests.cli.terminal import Terminal
from tests.support.server import Server

MODELS = Path(stoker.demo.__file__).parent / "models"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
SPEED = re.compile(r"(\d+) tokens, \d+\.\d tokens/s, first after \d+\.\d\d s")
LEFT, UP, BACKSPACE, CTRL_C, CTRL_D = "\x1b[D", "\x1b[A", "\x7f", "\x03", "\x04"


@pytest.fixture(scope="module")
def talker(server: Server) -> Cli:
    """Returns the command with the key of an account that has a chat model and a classifier."""
    server.wait_ready()
    cli = account_cli(server, "talker")
    for name, model in (("tiny-chat", "talk"), ("tiny-sentiment", "feel")):
        artifact = cli.json("artifacts", "push", str(MODELS / name))["id"]
        cli.json("deploy", model, artifact, "--readiness", "warm", "--engine", "torch")
    return cli


class TestTerminal:
    def test_arrow_keys_and_history(self, talker: Cli) -> None:
        with Terminal(talker, "chat", "talk", "-p", "temperature=0") as terminal:
            assert "/help" in terminal.until("> ")
            # Enter without a text asks again.
            terminal.send("\r")
            terminal.until("> ")
            terminal.send(QUESTION.replace("France", "Frannce") + LEFT * 3 + BACKSPACE + "\r")
            shown = terminal.until("\n> ")
            assert ANSWER in shown
            measured = SPEED.search(shown)
            assert measured and int(measured[1]) == 10
            terminal.send(UP + "\r")
            shown = terminal.until("\n> ")
            assert QUESTION in shown and ANSWER in shown
            terminal.send(CTRL_D)
            terminal.rest()
            assert terminal.code() == 0

    def test_commands(self, talker: Cli, tmp_path: Path) -> None:
        with Terminal(talker, "chat", "talk", folder=tmp_path) as terminal:
            terminal.until("> ")

            def answer(line: str) -> str:
                terminal.send(f"{line}\r")
                return terminal.until("\n> ")

            help_text = answer("/help")
            for command in ("/clear", "/system", "/set", "/save", "/exit"):
                assert command in help_text
            assert "Unknown command '/nonsense'" in answer("/nonsense")
            assert "temperature=0" in answer("/set temperature 0")
            assert 'temperature=0, stop="x"' in answer("/set stop=x")
            assert "'top_p' is not set" in answer("/set top_p")
            assert "temperature=0" in answer("/set stop")
            # An error of the server ends neither the chat nor its memory.
            answer("/set max_tokens 0")
            assert "param: max_tokens" in answer(QUESTION)
            answer("/set max_tokens")
            answer("/system Be brief.")
            assert ANSWER in answer(QUESTION)
            assert "Saved 3 messages" in answer("/save first.json")
            assert "cannot be written: File exists" in answer("/save first.json")
            assert "Name a file" in answer("/save")
            answer("/system")
            answer("/clear")
            assert "Saved 0 messages" in answer("/save second.json")
            terminal.send("/exit\r")
            terminal.rest()
            assert terminal.code() == 0
        assert json.loads((tmp_path / "first.json").read_text()) == {
            "model": "talk",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": ANSWER},
            ],
        }

    def test_ctrl_c_stops_an_answer_and_not_the_chat(self, talker: Cli) -> None:
        options = ("-p", "ignore_eos=true", "-p", "min_tokens=800", "-p", "max_tokens=900")
        with Terminal(talker, "chat", "talk", *options) as terminal:
            terminal.until("> ")
            terminal.send(f"{QUESTION}\r")
            terminal.until("The capital")
            terminal.send(CTRL_C)
            assert "Stopped." in terminal.until("\n> ")
            for line in ("/set min_tokens", "/set max_tokens 3"):
                terminal.send(f"{line}\r")
                terminal.until("\n> ")
            terminal.send(f"{QUESTION}\r")
            assert "3 tokens" in terminal.until("\n> ")
            # At the prompt, it ends the chat.
            terminal.send(CTRL_C)
            terminal.rest()
            assert terminal.code() == 130


class TestPipe:
    def test_each_line_is_a_message(self, talker: Cli) -> None:
        lines = f"{QUESTION}\n\n/help\n{QUESTION}\n"
        done = talker.run("chat", "talk", "-p", "temperature=0", stdin=lines)
        assert (done.returncode, done.stderr) == (0, "")
        first, second, third = done.stdout.splitlines()
        assert first == third == ANSWER
        assert "/clear" not in second

    def test_one_message(self, talker: Cli) -> None:
        done = talker.run("chat", "talk", QUESTION)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{ANSWER}\n", "")

    def test_a_model_of_another_task(self, talker: Cli) -> None:
        done = talker.run("chat", "feel", QUESTION)
        assert done.returncode == 1
        assert "deployed for text-classification" in done.stderr
        assert "Use 'stoker call feel …'." in done.stderr
        done = talker.run("image", "talk", "a boat")
        assert "Use 'stoker chat talk …'" in done.stderr
