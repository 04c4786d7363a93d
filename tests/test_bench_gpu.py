"""The GPU benchmark tells right answers from wrong ones, and judges and writes its rows."""

import base64
import io
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from bench.gpu import answers, card
from bench.gpu.card import Card
from bench.gpu.decode import StaticDecoder
from bench.gpu.results import JSON_NAME, TABLE_NAME, Results, Row, Target, Verdict
from bench.gpu.session import _environment
from bench.gpu.sizes import FULL, TINY

ROOT = Path(__file__).parents[1]


def picture(level: int) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (level, level, level)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


class TestAnswers:
    @pytest.mark.parametrize(
        ("expected", "actual"),
        [
            ({"score": 0.9}, {"score": 0.91}),
            ({"logprob": -9.0}, {"logprob": -9.1}),
            ({"id": "a", "text": "x"}, {"id": "b", "text": "x"}),
            ({"b64_json": picture(100)}, {"b64_json": picture(104)}),
            ({"bytes": base64.b64encode(b"m" * 100).decode()},) * 2,
        ],
    )
    def test_equal_within_the_tolerance(self, expected: Any, actual: Any) -> None:
        assert answers.difference(expected, actual).wrong == []

    @pytest.mark.parametrize(
        ("expected", "actual"),
        [
            ({"score": 0.9}, {"score": 0.8}),
            ({"score": 0.9}, {"score": float("nan")}),
            ({"label": "a"}, {"label": "b"}),
            ({"label": "a", "score": 1}, {"label": "a"}),
            ([1, 2], [1]),
            ({"b64_json": picture(100)}, {"b64_json": picture(120)}),
            ({"bytes": base64.b64encode(b"m" * 100).decode()}, {"bytes": ""}),
        ],
    )
    def test_wrong(self, expected: Any, actual: Any) -> None:
        assert answers.difference(expected, actual).wrong != []

    def test_labels(self) -> None:
        expected = [{"label": "a", "score": 0.9}, {"label": "b", "score": 0.3}]
        names = ("label",)
        close = [{"label": "a", "score": 0.88}, {"label": "c", "score": 0.31}]
        assert answers.wrong_labels(expected, close, names) == ""
        assert answers.wrong_labels(expected, expected[:1], names)
        assert answers.wrong_labels(expected, [{"label": "b", "score": 0.9}, expected[1]], names)
        assert answers.wrong_labels(expected, [{"label": "a", "score": 0.6}, expected[1]], names)
        assert answers.wrong_scores([(expected, close)]) == ""
        assert answers.wrong_scores([(expected, close), (expected, [{"score": 0.7}])])
        assert answers.wrong_scores([(expected, [{"score": float("nan")}])])

    def test_vectors(self) -> None:
        expected = [[1.0, 0.0, 0.0], [1.0, 0.02, 0.0], [0.0, 1.0, 0.0]]
        assert answers.wrong_vector(expected, 0, [2.0, 0.0, 0.001]) == ""
        assert answers.wrong_vector(expected, 0, [0.0, 1.0, 0.0])
        assert answers.wrong_vector(expected, 0, [1.0, 0.0])
        assert answers.wrong_vector(expected, 0, [float("nan")] * 3)
        # The vector of another input, in a batch with swapped answers.
        assert "input 1" in answers.wrong_vector(expected, 0, expected[1])

    def test_tokens(self) -> None:
        assert answers.wrong_leads([0.0, 0.01]) == ""
        assert answers.wrong_leads([0.0, 2.0])
        assert answers.wrong_leads([0.0, float("nan")])


class TestRows:
    def judged(self, target: Target, stoker: float, bare: float | None = None, **row: Any) -> Row:
        made = Row(name="work", unit="1/s", target=target, stoker=stoker, bare=bare, **row)
        made.judge(is_tiny=False)
        return made

    def test_verdicts(self) -> None:
        both = Target(least=100, ratio=0.8)
        assert self.judged(both, 100, 120).verdict is Verdict.MET
        assert self.judged(both, 99, 99).verdict is Verdict.MISSED
        assert self.judged(both, 100, 130).verdict is Verdict.MISSED
        assert self.judged(both, 100, None).verdict is Verdict.MISSED
        assert self.judged(Target(most=1), 2).verdict is Verdict.MISSED
        within = Target(within=0.1)
        assert self.judged(within, 95, 100).verdict is Verdict.MET
        assert self.judged(within, 120, 100).verdict is Verdict.MISSED
        assert self.judged(Target(), 1).verdict is Verdict.NOT_JUDGED

    def test_a_wrong_answer_outweighs_speed(self, tmp_path: Path) -> None:
        row = self.judged(Target(least=1), 100, wrong="label")
        assert row.verdict is Verdict.WRONG
        assert not Results(tmp_path, {}, [row]).is_good
        assert Results(tmp_path, {}, [self.judged(Target(least=200), 100)]).is_good

    def test_a_time_has_the_ratio_of_speeds(self) -> None:
        assert Row(name="w", unit="ms", target=Target(), stoker=4, bare=2).ratio == 0.5
        assert Row(name="w", unit="1/s", target=Target(), stoker=4, bare=2).ratio == 2

    def test_files(self, tmp_path: Path) -> None:
        rows = [
            self.judged(Target(least=100), 1234.5, 2000),
            Row(name="late", unit="s", target=Target(most=1)),
        ]
        Results(tmp_path, {"card": "none", "machine": {"cores": 2}}, rows).save()
        document = json.loads((tmp_path / JSON_NAME).read_text())
        assert [row["verdict"] for row in document["rows"]] == ["met", "not measured"]
        table = (tmp_path / TABLE_NAME).read_text()
        assert "| work | 1,234 1/s | 2,000 1/s | 0.62 | ≥ 100 1/s | met |" in table
        assert "not reached" in table
        assert "- card: none" in table
        assert "machine" not in table


class TestStaticDecoder:
    def test_equals_generate(self) -> None:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        model = transformers.LlamaForCausalLM(config).eval()
        prompts = torch.randint(5, 64, (3, 7))
        with torch.inference_mode():
            wish = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
            mask = torch.ones_like(prompts)
            expected = model.generate(prompts, attention_mask=mask, pad_token_id=0, **wish)
            decoder = StaticDecoder(model, 3, 20)
            for _ in range(2):
                assert torch.equal(decoder.generate(prompts, 9), expected[:, 7:])


class TestCard:
    def test_facts_memory_and_load(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / card.PROGRAM
        program.write_text(
            "#!/bin/sh\n"
            'case "$*" in\n'
            '  *--loop-ms*) while :; do echo "50, 1000, 300.5"; sleep 0.05; done;;\n'
            '  *name*) echo "Tester 100, 580.1, 81559, GPU-1, Disabled";;\n'
            '  *) echo "1234";;\n'
            "esac\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with Card() as sampled:
            assert sampled.facts()["driver_version"] == "580.1"
            assert sampled.used_bytes() == 1234 << 20
            since = time.monotonic() - card.SETTLE_S
            deadline = time.monotonic() + 10
            while not (load := sampled.load(since)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert load == {"busy_percent": 50, "peak_used_mib": 1000, "watts": 300}

    def test_without_a_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with Card() as sampled:
            assert (sampled.facts(), sampled.used_bytes(), sampled.load(0)) == ({}, None, {})


def test_tiny_sizes_hide_the_gpu() -> None:
    assert _environment(TINY)["CUDA_VISIBLE_DEVICES"] == ""
    assert _environment(FULL)["CUDA_VISIBLE_DEVICES"] == card.DEVICE


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_a_dry_run_only_prints_the_command() -> None:
    """Make runs every line that names the variable MAKE, even with -n."""
    variables = ["STOKER_GPU_PYTHON=/none/python", "BENCH=--rows chat"]
    command = ["make", "-n", "--no-print-directory", "bench-gpu", *variables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ['"/none/python" -m bench.gpu --rows chat']
