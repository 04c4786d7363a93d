"""`stoker demo` as a newcomer uses it: real answers by curl, by the CLI and from Python."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.demo.examples import EXAMPLES, MEDIA, MEDIA_CALLS, SHOWN
from stoker.demo.setup import MODELS
from stoker.models.tasks.registry import PIPELINES, TASKS
from tests.artifacts.support import eventually
from tests.demo.conftest import HUB_MODEL
from tests.demo.sentences import FILL, NER, SENTIMENT, SIMILAR
from tests.support.doc_blocks import blocks
from tests.support.pages import guide, guide_pages
from tests.support.server import USERS, Server

ROOT = Path(__file__).parents[2]
WEATHER = '{"temperature": 21, "condition": "sunny"}'
README = (ROOT / "README.md").read_text()
INTEGRATIONS = "docs/guide/integrations.md"
LIBRARIES = ROOT / ".data" / "docs-env" / "bin" / "python"
NEEDS_LIBRARIES = pytest.mark.skipif(
    not LIBRARIES.exists(), reason=f"{LIBRARIES} was not found: make install-docs"
)


def ask(demo: Server, state: Any, model: str, path: str, **body: Any) -> Any:
    """Calls a model with its own key, which needs no `model` field."""
    with demo.client(state["deployments"][model]["key"]) as client:
        return client.post(path, json=body).raise_for_status().json()


class TestState:
    def test_names_everything(self, demo: Server, state: Any) -> None:
        assert state["base_url"] == demo.base_url
        deployed = {name: entry["pipeline"] for name, entry in state["deployments"].items()}
        assert set(deployed) == {folder.name for folder in MODELS.iterdir()}
        assert set(deployed.values()) == set(PIPELINES), "every pipeline has a demo model"

    @pytest.mark.one_machine
    def test_uses_the_account_of_the_first_start(self, demo: Server, state: Any) -> None:
        assert state["account_key"] == (demo.data_dir / "account-key").read_text().strip()
        with demo.client(demo.operator_key) as operator:
            accounts = operator.get("/v1/accounts", params={"order": "asc"}).json()["data"]
        assert accounts[0]["name"] == "default"
        assert "demo" not in [account["name"] for account in accounts]

    def test_is_private(self, demo: Server) -> None:
        assert (demo.data_dir / "demo.json").stat().st_mode & 0o777 == 0o600

    def test_models_start_cold(self, demo: Server, state: Any) -> None:
        with demo.client(state["account_key"]) as client:
            data = client.get("/v1/deployments").json()["data"]
        assert {deployment["readiness"] for deployment in data} == {"cold"}


class TestAnswers:
    @pytest.mark.parametrize(("text", "entities"), NER)
    def test_entities(self, demo: Server, state: Any, text: str, entities: Any) -> None:
        answer = ask(
            demo,
            state,
            "tiny-ner",
            "/v1/classifications/token",
            inputs=text,
            aggregation_strategy="simple",
        )
        spans = [(text[span["start"] : span["end"]], span["entity_group"]) for span in answer]
        assert spans == [tuple(entity) for entity in entities]

    def test_raw_tokens_have_exactly_the_six_fields(self, demo: Server, state: Any) -> None:
        text, entities = NER[0]
        answer = ask(demo, state, "tiny-ner", "/v1/classifications/token", inputs=text)
        assert {frozenset(token) for token in answer} == {
            frozenset({"word", "score", "entity", "index", "start", "end"})
        }
        assert text[answer[0]["start"] :].startswith(entities[0][0][:1])

    @pytest.mark.parametrize(("text", "word"), FILL)
    def test_words(self, demo: Server, state: Any, text: str, word: str) -> None:
        answer = ask(demo, state, "tiny-fill-mask", "/v1/fill-mask", inputs=text)
        assert answer[0]["token_str"] == word
        assert len(answer) == 5

    @pytest.mark.parametrize(("text", "label"), SENTIMENT)
    def test_labels(self, demo: Server, state: Any, text: str, label: str) -> None:
        answer = ask(demo, state, "tiny-sentiment", "/v1/classifications/text", inputs=text)
        assert answer[0]["label"] == label
        assert sum(entry["score"] for entry in answer) == pytest.approx(1)

    @pytest.mark.parametrize(("text", "related", "unrelated"), SIMILAR)
    def test_neighbours(
        self, demo: Server, state: Any, text: str, related: str, unrelated: str
    ) -> None:
        vectors = np.array(
            ask(
                demo,
                state,
                "tiny-encoder",
                "/v1/feature-extraction",
                inputs=[text, related, unrelated],
            )
        )
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


class TestReadme:
    """The README's calls work as written, except for the port."""

    @pytest.fixture
    def shell(self, demo: Server, state: Any):
        env = {
            **os.environ,
            "PATH": f"{Path(USERS).parent}:{os.environ['PATH']}",
            "STOKER_API_KEY": state["account_key"],
            "STOKER_BASE_URL": demo.base_url,
        }

        def run(script: str) -> str:
            script = script.replace("http://127.0.0.1:8000", demo.base_url)
            done = subprocess.run(
                ["bash", "-euc", script],
                cwd=demo.data_dir.parent,
                env=env,
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return run

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)

    def test_key(self, shell: Any, state: Any) -> None:
        block = next(code for code in self.blocks("sh") if "export STOKER_API_KEY" in code)
        export = block.splitlines()[1]
        assert shell(f'{export}\necho "$STOKER_API_KEY"').strip() == state["account_key"]

    def test_hub(self, shell: Any) -> None:
        block = next(code for code in self.blocks("sh") if "hf:" in code)
        shell(block.replace("org/name", HUB_MODEL))
        assert json.loads(shell("stoker call my-model Clara --json"))
        shell("stoker deployments delete my-model --yes")

    def test_curl(self, shell: Any) -> None:
        block = next(code for code in self.blocks("sh") if "curl" in code)
        answer = json.loads(shell(block.replace("curl ", "curl -s ")))
        assert answer[0]["entity"] == "B-PER"

    def test_command_line(self, shell: Any) -> None:
        block = next(code for code in self.blocks("sh") if "stoker call tiny" in code)
        sentiment, fill_mask, digits, models = block.strip().splitlines()
        assert json.loads(shell(sentiment + " --json"))[0]["label"] == "negative"
        assert json.loads(shell(fill_mask + " --json"))[0]["token_str"] == "paris"
        digits = digits.replace(MEDIA, f"{ROOT}/{MEDIA}")
        assert json.loads(shell(digits + " --json"))[0]["label"] == "7"
        assert "tiny-ner" in shell(models)

    def test_calls_of_the_guide(self, shell: Any) -> None:
        blocks = re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL)
        block = next(code for code in blocks if "stoker call tiny-digits" in code)
        calls = block.replace(MEDIA, f"{ROOT}/{MEDIA}").strip().splitlines()
        digit, colour, label, text = (json.loads(shell(f"{call} --json")) for call in calls)
        assert (digit[0]["label"], colour[0]["label"]) == ("7", "red")
        assert (label[0]["label"], text["text"]) == ("a red circle", "seven three one")

    @pytest.mark.release
    def test_trials_of_the_guide(self, shell: Any) -> None:
        """bfloat16 changes none of the labels, because the demo's model was trained."""
        blocks = re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL)
        tune, apply = (block for block in blocks if "stoker tune tiny-ner" in block)
        table = shell(tune)
        assert "measured" in table and "1.0000 top labels" in table
        (trial,) = [json.loads(shell("stoker tune tiny-ner --last --json"))]
        assert (trial["examples"], trial["rows"][0]["dtype"]) == (2, "float32")
        assert all(row["agreement"] in (1, None) for row in trial["rows"])
        shell(f"{apply}rm sentences.txt")
        changed = json.loads(shell("stoker deployments show tiny-ner --json"))
        assert changed["dtype"] == "bfloat16"
        shell("stoker deployments update tiny-ner --dtype auto --engine auto")

    def test_checks_of_the_guide(self, shell: Any) -> None:
        blocks = re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL)
        (block,) = (code for code in blocks if "stoker check tiny-ner" in code)
        assert shell(f"{block}rm checks.json").count("passed") == 4

    def test_versions_of_the_guide(self, shell: Any) -> None:
        blocks = re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL)
        (block,) = (code for code in blocks if "stoker versions add tiny-ner" in code)
        listed = shell(block)
        assert "half the memory" in listed
        assert "retired" in listed
        shell("stoker deployments update tiny-ner --dtype auto --engine auto")

    def test_chat(self, shell: Any) -> None:
        block = next(code for code in self.blocks("sh") if "stoker chat" in code)
        assert shell(block) == "The capital of France is Paris.\n"

    def test_agents(self, shell: Any) -> None:
        block = next(item for item in self.blocks("sh") if "stoker agents" in item)
        *made, run = block.strip().splitlines()
        shell("\n".join(made))
        assert shell(f"echo '{WEATHER}' | {run}") == "It is 21 degrees and sunny in Paris.\n"
        (ended,) = json.loads(shell("stoker agents runs weather --json"))
        assert (ended["status"], ended["usage"]["steps"]) == ("completed", 2)
        events = json.loads(shell(f"stoker agents events weather {ended['id']} --json"))
        assert [item["sequence"] for item in events] == [*range(1, len(events) + 1)]
        assert events[-1]["data"]["output"] == "It is 21 degrees and sunny in Paris."
        waits = json.loads(shell(f"{run} --no-wait --json"))["id"]
        shell(f"stoker agents cancel weather {waits}")
        shell(f"stoker agents erase weather {ended['id']} --yes")
        (remaining,) = json.loads(shell("stoker agents runs weather --json"))
        assert (remaining["id"], remaining["status"]) == (waits, "cancelled")
        shell("stoker agents delete weather --yes; rm tools.json")
        assert json.loads(shell("stoker agents list --json")) == []

    def test_files(self, shell: Any, demo: Server) -> None:
        block = next(code for code in self.blocks("sh") if "stoker image" in code)
        assert "seven three one\n" in shell(block.replace(MEDIA, f"{ROOT}/{MEDIA}"))
        for name, begins in (("circle.png", b"\x89PNG"), ("circle.mp4", b"\0\0\0")):
            assert (demo.data_dir.parent / name).read_bytes().startswith(begins)

    def test_chat_about_a_picture(self, shell: Any) -> None:
        scene = ROOT / MEDIA / "scene.png"
        typed = "What is in the picture?\nHello!\n"
        output = shell(f"printf '%s' '{typed}' | stoker chat tiny-vision --image {scene}")
        assert output.splitlines()[0] == "a red circle left of a blue square"

    def test_a_conversation(self, shell: Any) -> None:
        typed = "What is 7 plus 5?\nWhat colour is grass?\n"
        output = shell(f"printf '%s' '{typed}' | stoker chat tiny-chat -p temperature=0")
        assert output == "7 plus 5 is 12.\nGrass is green.\n"

    def test_call_of_a_language_model(self, shell: Any) -> None:
        answer = json.loads(shell('stoker call tiny-chat "What colour is grass?" --json'))
        assert answer["choices"][0]["message"]["content"] == "Grass is green."

    def test_guide(self, shell: Any, demo: Server, state: Any, tmp_path: Path) -> None:
        others = ("python.md", "integrations.md", "batches.md")
        pages = [page.read_text() for page in guide_pages() if page.name not in others]
        block = "\n".join(re.findall(r"```python\n(.*?)```", "\n".join(pages), re.DOTALL))
        sound = tmp_path / "speech.mp3"
        block = block.replace('"speech.mp3"', repr(str(sound)))
        variables = f"base_url, api_key = {demo.base_url!r}, {state['account_key']!r}"
        # Runs in the project's environment, because the guide's readers have installed the SDK.
        output = shell(f"cd {ROOT}; {sys.executable} - <<'END'\n{variables}\n{block}\nEND")
        assert output.splitlines() == [
            "The capital of France is Paris.",
            "blue",
            "The capital of France is Paris.",
            "seven three one",
            "Paris is in France.",
            "It is 21 degrees and sunny in Paris.",
        ]
        assert sound.stat().st_size > 1000

    def test_langchain(self, shell: Any, demo: Server) -> None:
        answer, length = self.integration(shell, demo, "langchain_openai", sys.executable)
        assert answer == "The capital of France is Paris."
        assert int(length) > 16

    @NEEDS_LIBRARIES
    @pytest.mark.release
    def test_llama_index(self, shell: Any, demo: Server) -> None:
        printed = self.integration(shell, demo, "llama_index", LIBRARIES)
        assert printed == ["The capital of France is Paris."]

    @NEEDS_LIBRARIES
    @pytest.mark.release
    def test_litellm(self, shell: Any, demo: Server) -> None:
        printed = self.integration(shell, demo, "import litellm", LIBRARIES)
        assert printed[-1] == "The capital of France is Paris."

    def integration(self, shell: Any, demo: Server, word: str, python: Path | str) -> list[str]:
        """Returns the lines that the guide's program with this word prints."""
        found = [block for block in blocks(INTEGRATIONS) if word in block.text]
        (block,) = (block.text for block in found if block.language == "python")
        block = block.replace("http://127.0.0.1:8000", demo.base_url)
        return shell(f"{python} - <<'END'\n{block}\nEND").splitlines()

    def test_python(self, shell: Any, demo: Server) -> None:
        (block,) = self.blocks("python")
        assert int(shell(f"python - <<'END'\n{block}\nEND")) > 16

    def test_own_model(self, shell: Any, demo: Server, tmp_path: Path) -> None:
        block = next(code for code in self.blocks("sh") if "artifacts push" in code)
        output = shell(block.replace("path/to/model", str(MODELS / "tiny-sentiment")))
        assert "positive" in output


def test_second_start_keeps_everything(first_state: Any, state: Any, demo: Server) -> None:
    _, first = first_state
    with demo.client(state["account_key"]) as client:
        models = client.get("/v1/models").raise_for_status().json()["data"]
        # Another test may have added a model.
        assert {model["id"] for model in models} >= {folder.name for folder in MODELS.iterdir()}
    assert {**first, "base_url": ""} == {**state, "base_url": ""}


def test_printed_calls_work(demo: Server) -> None:
    """The commands that `stoker demo` prints work as copied."""
    assert eventually(lambda: "Ctrl-C ends the server." in demo.log.read_text())
    printed = demo.log.read_text().rpartition("In a second terminal:")[2]
    exports = "\n".join(re.findall(r"^export .*$", printed, re.MULTILINE))
    commands = re.findall(r"^curl (?:.*\\\n)*.*$", printed, re.MULTILINE)
    assert len(commands) == len(SHOWN)
    for command in commands:
        answer = json.loads(shell(f"{exports}\n{command}"))
        assert isinstance(answer, list), answer
        assert answer


@pytest.mark.parametrize("name", TASKS)
def test_calls_in_the_docs_work(demo: Server, state: Any, name: str) -> None:
    """The calls in docs/tasks.md work in the project's folder. They are built from the same
    examples.
    """
    call = EXAMPLES[name].curl(TASKS[name].path, demo.base_url, state["account_key"])
    answer = json.loads(shell(call))
    assert answer, answer
    assert "error" not in answer, answer


@pytest.mark.parametrize("path", MEDIA_CALLS)
def test_calls_for_media_in_the_docs_work(
    demo: Server, state: Any, path: str, tmp_path: Path
) -> None:
    example = MEDIA_CALLS[path]
    call = example.curl(path, demo.base_url, state["account_key"])
    if target := example.target:
        shell(call.replace(target, str(tmp_path / target)))
        assert (tmp_path / target).stat().st_size > 1000
        return
    answer = json.loads(shell(call))
    if path.startswith("/v1/images"):
        [drawn] = answer["data"]
        assert shell(f"curl '{drawn['url']}' | tail -c +2 | head -c 3") == "PNG"
    elif path.startswith("/v1/audio"):
        assert answer["text"] == "seven three one"
    else:
        assert (answer["object"], answer["status"]) == ("video", "queued")


def shell(script: str) -> str:
    """Runs a script in the project's folder. Returns its output."""
    done = subprocess.run(
        ["bash", "-euc", script.replace("curl ", "curl -s ")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout
