"""Fields of generation_config.json, compared with `generate` of transformers, token by token."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.chat.prompts.templates import ChatTemplate
from stoker.models.llm.checkpoint import load_model
from stoker.models.llm.draws import DrawRow, Draws
from stoker.models.llm.engines.torch import TorchRunner
from stoker.models.llm.generation_defaults import Defaults
from stoker.models.llm.logit_rules import LogitRules
from stoker.models.llm.sampling import shaped
from stoker.models.llm.scheduler import Scheduler
from stoker.models.llm.speculation import Speculation
from stoker.wire.generation_request import Sampling
from tests.llm.support import CHATML, VOCABULARY, Answers, submission, tiny_llama, tokenizer

library: Any = transformers

PROMPT = [72, 101, 108, 108, 111, 33, 72, 101]
COUNT = 14
END = 7


class World:
    """A tiny model with a generation_config.json that changes from test to test."""

    def __init__(self, folder: Path) -> None:
        self.folder = tiny_llama(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        self.model = load_model(folder)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.plain = self.theirs({}, max_new_tokens=COUNT)

    def write(self, own: Mapping[str, Any] | None, **config: Any) -> None:
        path = self.folder / "generation_config.json"
        path.unlink(missing_ok=True)
        if own is not None:
            path.write_text(json.dumps(own))
        (self.folder / "config.json").write_text(json.dumps(self.config | config))

    def theirs(self, own: Mapping[str, Any] | None, prompt: Any = PROMPT, **more: Any) -> list[int]:
        """Returns the tokens that `generate` adds to the prompt, including the token that ends
        it.
        """
        self.write(own, **more.pop("config", {}))
        # Reads the files as for the whole model, but without its weights.
        kind: Any = library.GenerationConfig
        if own is None:
            name = "config.json"
            generation_config = kind.from_pretrained(self.folder, name, _from_model_config=True)
        else:
            generation_config = kind.from_pretrained(self.folder)
        self.model.generation_config = generation_config
        ids = torch.tensor([prompt])
        options = {"pad_token_id": 0, "attention_mask": torch.ones_like(ids), **more}
        with torch.inference_mode():
            return self.model.generate(ids, **options)[0, ids.shape[1] :].tolist()

    def defaults(self, own: Mapping[str, Any] | None, **more: Any) -> Defaults:
        self.write(own, **more.pop("config", {}))
        options = {"max_length": 320, "vocabulary": VOCABULARY, **more}
        return Defaults.read(self.folder, NoEnd(), **options)

    def ours(
        self, own: Mapping[str, Any] | None, prompt: Any = PROMPT, count: int = COUNT, **more: Any
    ) -> list[int]:
        """Returns the tokens that our scheduler adds, with the end token if only one is defined."""
        defaults = self.defaults(own, config=more.pop("config", {}))
        runner = TorchRunner(self.model, threads=1, cache_bytes=1 << 24)
        scheduler = Scheduler(runner, defaults.ends, speculation=more.pop("speculation", None))
        sampling = defaults.filled(Sampling(temperature=0.0, max_tokens=count, **more), len(prompt))
        scheduler.submit(submission(1, prompt, sampling, rules=defaults.rules))
        answers = Answers(scheduler).drain()
        assert not answers.errors
        ended = answers.finish[1] == "stop"
        return answers.tokens[1] + (sorted(defaults.ends) if ended else [])


class NoEnd:
    """A tokenizer without an end token."""

    eos_token_id = None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield World(tmp_path_factory.mktemp("rules"))


def fields(world: World) -> dict[str, dict[str, Any]]:
    """Returns each field alone, with values that must change the model's answer, then several
    together.
    """
    first, second, third, *_ = world.plain
    bias = [[[first], -50.0], [[second, third], -50.0], [[PROMPT[-1], 40], 60.0]]
    single: dict[str, Any] = {
        "suppress_tokens": [first, second],
        "begin_suppress_tokens": [first],
        "bad_words_ids": [[first], [second, third]],
        "sequence_bias": bias,
        "no_repeat_ngram_size": 1,
        "encoder_no_repeat_ngram_size": 1,
        "repetition_penalty": 1.8,
        "encoder_repetition_penalty": 3.0,
        "forced_eos_token_id": END,
        "exponential_decay_length_penalty": [3, 1.9],
        "min_new_tokens": 9,
        "min_length": len(PROMPT) + 9,
        "watermarking_config": {"bias": 9.0, "seeding_scheme": "lefthash", "hashing_key": 7},
    }
    ended = {"eos_token_id": third}
    alone = {
        name: {name: value, "eos_token_id": END} | (ended if name.startswith("min_") else {})
        for name, value in single.items()
    }
    alone["exponential_decay_length_penalty"]["eos_token_id"] = third
    every = {name: value for name, value in single.items() if name != "min_length"}
    some = {name: single[name] for name in list(single)[::2]} | {"remove_invalid_values": True}
    other_half = {name: single[name] for name in list(single)[1::2]}
    together = {"all": every, "some": some, "others": other_half}
    return alone | {name: value | {"eos_token_id": END} for name, value in together.items()}


_NAMES = (
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "repetition_penalty"),
    *("encoder_repetition_penalty", "forced_eos_token_id", "exponential_decay_length_penalty"),
    *("min_new_tokens", "min_length", "watermarking_config", "all", "some", "others"),
)


class TestAsGenerate:
    @pytest.mark.parametrize("name", _NAMES)
    def test_greedily(self, name: str, world: World) -> None:
        settings = fields(world)[name] | {"do_sample": False}
        theirs = world.theirs(settings, max_new_tokens=COUNT)
        assert theirs != world.plain, "the field has to have an effect"
        assert world.ours(settings) == theirs

    @pytest.mark.parametrize("name", ["all", "no_repeat_ngram_size", "bad_words_ids"])
    def test_while_tokens_are_guessed(self, name: str, world: World) -> None:
        settings, prompt = fields(world)[name], [*PROMPT, *world.plain, *PROMPT]
        theirs = world.theirs(settings, prompt, max_new_tokens=COUNT)
        assert world.ours(settings, prompt, speculation=Speculation()) == theirs

    def test_the_first_token_behind_a_single_one(self, world: World) -> None:
        settings = {"forced_bos_token_id": 33, "begin_suppress_tokens": [world.plain[0], 40]}
        theirs = world.theirs(settings, [65], max_new_tokens=COUNT)
        assert theirs[0] == 33
        assert world.ours(settings, [65]) == theirs

    def test_the_files_penalty_gives_way_to_the_requests(self, world: World) -> None:
        settings = fields(world)["all"]
        theirs = world.theirs(
            settings, max_new_tokens=COUNT, repetition_penalty=1.0, min_new_tokens=0
        )
        assert world.ours(settings, repetition_penalty=1.0, min_tokens=0) == theirs

    @pytest.mark.parametrize(
        "own",
        [
            {"typical_p": 0.4},
            {"epsilon_cutoff": 0.02},
            {"eta_cutoff": 0.02},
            {"top_h": 0.4},
            {"typical_p": 0.8, "epsilon_cutoff": 0.001, "top_k": 9, "temperature": 1.7},
            {"watermarking_config": {"bias": 4.0}, "top_p": 0.8, "min_p": 0.02},
        ],
    )
    def test_what_may_be_drawn(self, own: dict[str, Any], world: World) -> None:
        """The probabilities of the drawn tokens are those of `generate`."""
        settings = {"top_k": 0} | own | {"do_sample": True}
        self._kept(world, settings, expected := [])
        defaults = world.defaults(settings)
        sampling = defaults.filled(Sampling(max_tokens=1), len(PROMPT))
        row = self._logits(world)
        draws = Draws(sampling, PROMPT, frozenset(), VOCABULARY, rules=defaults.rules)
        assert DrawRow(draws).by_rules
        (truncated,), _ = shaped(row[None], [DrawRow(draws)])
        torch.testing.assert_close(truncated.softmax(-1), expected[0].softmax(-1))
        assert int((truncated > -torch.inf).sum()) > 1

    def _kept(self, world: World, own: Mapping[str, Any], found: list[torch.Tensor]) -> None:
        torch.manual_seed(0)
        world.write(own)
        world.model.generation_config = library.GenerationConfig.from_pretrained(world.folder)
        answer = world.model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        found.append(answer.scores[0][0])

    def _logits(self, world: World) -> torch.Tensor:
        with torch.inference_mode():
            return world.model(input_ids=torch.tensor([PROMPT])).logits[0, -1].float()


class TestEnds:
    @pytest.mark.parametrize("is_list", [True, False])
    @pytest.mark.parametrize("place", ["generation_config", "config", "text_config"])
    def test_stop_where_generate_stops(self, place: str, is_list: bool, world: World) -> None:
        end = world.plain[4]
        ends = {"eos_token_id": [end] if is_list else end}
        settings = ends if place == "generation_config" else None
        config = {"config": ends, "text_config": {"text_config": ends}}.get(place, {})
        theirs = world.theirs(settings, config=config, max_new_tokens=COUNT)
        assert len(theirs) == world.plain.index(end) + 1 < COUNT
        assert world.ours(settings, config=config) == theirs

    def test_generation_config_hides_config(self, world: World) -> None:
        config = {"eos_token_id": world.plain[2]}
        settings = {"eos_token_id": world.plain[5]}
        theirs = world.theirs(settings, config=config, max_new_tokens=COUNT)
        assert world.ours(settings, config=config) == theirs
        assert world.defaults({}, config=config).ends == frozenset()

    def test_the_tokenizers_and_the_templates(self, tmp_path: Path) -> None:
        made = tokenizer(CHATML)
        end = made.convert_tokens_to_ids("<|im_end|>")
        made.eos_token = "<|endoftext|>"
        made.save_pretrained(tmp_path)
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3}')
        ends = ChatTemplate(made).ends_of_turn()
        assert ends == [end]
        assert Defaults.read(tmp_path, made, ends=ends).ends == {3, end, made.eos_token_id}

    @pytest.mark.parametrize(
        ("template", "names"),
        [
            (CHATML, ["<|im_end|>"]),
            ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}", []),
            ("{{ messages[0].content }}<think>{{ messages[-1].content }}\n</think>x", ["</think>"]),
            (
                "{% for m in messages %}{{ m.content[0].text }}<|im_start|>{% endfor %}",
                ["<|im_start|>"],
            ),
            ("{{ raise_exception('no') }}", []),
            (None, []),
        ],
    )
    def test_of_a_turn(self, template: str | None, names: list[str]) -> None:
        made = tokenizer(template)
        assert ChatTemplate(made).ends_of_turn() == [
            made.convert_tokens_to_ids(name) for name in names
        ]

    def test_none_at_all_is_a_notice(self, world: World) -> None:
        defaults = world.defaults({})
        assert [notice.code for notice in defaults.notices] == ["no_end_of_text"]
        assert not world.defaults({"eos_token_id": 3}).notices

    @pytest.mark.parametrize("value", [-1, "x", [1, "y"], True, 2.5])
    def test_values_that_are_no_tokens(self, value: Any, world: World) -> None:
        defaults = world.defaults({"eos_token_id": value})
        assert defaults.ends == frozenset()
        assert [notice.code for notice in defaults.notices] == [
            "generation_field",
            "no_end_of_text",
        ]


class TestDefaults:
    def read(self, world: World, **own: Any) -> Defaults:
        return world.defaults({"eos_token_id": END} | own)

    def test_without_a_file(self, world: World) -> None:
        assert world.defaults(None) == Defaults()

    def test_the_models_own(self, world: World) -> None:
        settings = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05}
        settings |= {"repetition_penalty": 1.05, "max_new_tokens": 9, "min_new_tokens": 2}
        defaults = self.read(
            world, **settings, do_sample=True, eos_token_id=[3, 4], stop_strings="\n"
        )
        assert defaults == Defaults(**settings, ends=frozenset([3, 4]), stop=["\n"])
        assert defaults.rules is None
        assert not defaults.notices

    def test_greedy(self, world: World) -> None:
        assert self.read(world, do_sample=False, temperature=0.7).temperature == 0.0

    def test_nulls_are_no_values(self, world: World) -> None:
        defaults = self.read(
            world, temperature=None, top_k=None, num_beams=None, bad_words_ids=None
        )
        assert defaults == Defaults(ends=frozenset([END]))
        assert not defaults.notices

    def test_fill_what_was_left_open(self, world: World) -> None:
        defaults = self.read(world, temperature=0.7, top_k=20, top_p=0.8, min_length=9)
        filled = defaults.filled(Sampling(temperature=0.0, top_p=0.5, seed=3), 5)
        expected = {"temperature": 0.0, "top_p": 0.5, "top_k": 20, "min_p": 0.0, "min_tokens": 4}
        assert filled == Sampling(**expected, repetition_penalty=1.0, seed=3)
        assert defaults.filled(Sampling(min_tokens=0), 5).min_tokens == 0

    @pytest.mark.parametrize(
        ("name", "value", "off"),
        [
            ("num_beams", 4, 1),
            ("num_return_sequences", 2, 1),
            ("penalty_alpha", 0.6, 0),
            ("guidance_scale", 1.5, 1.0),
            ("max_length", 50, 320),
            ("max_time", 3.0, None),
            ("token_healing", True, False),
            ("force_words_ids", [[3]], None),
            ("constraints", ["x"], None),
            ("dola_layers", "low", None),
        ],
    )
    def test_what_is_not_honoured_is_named(
        self, name: str, value: Any, off: Any, world: World
    ) -> None:
        (notice,) = self.read(world, **{name: value}).notices
        assert notice.code == "generation_field"
        assert f'"{name}": {json.dumps(value)} of generation_config.json' in notice.message
        assert not self.read(world, **{name: off}).notices

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", "hot"),
            ("temperature", float("inf")),
            ("top_p", 1.5),
            ("top_k", -3),
            ("bad_words_ids", [[]]),
            ("bad_words_ids", [3]),
            ("sequence_bias", [[[3], "x"]]),
            ("sequence_bias", [[3, 1.0]]),
            ("suppress_tokens", {"a": 1}),
            ("exponential_decay_length_penalty", [1]),
            ("watermarking_config", {"seeding_scheme": "no"}),
            ("watermarking_config", [1]),
            ("stop_strings", [""]),
            ("min_new_tokens", 1 << 40),
        ],
    )
    def test_values_of_another_type_have_no_effect_and_are_named(
        self, name: str, value: Any, world: World
    ) -> None:
        defaults = self.read(world, **{name: value})
        assert defaults == Defaults(ends=frozenset([END]))
        assert defaults.rules is None
        (notice,) = defaults.notices
        assert f'"{name}"' in notice.message

    def test_engines_with_a_loop_of_their_own_apply_no_rules(self, world: World) -> None:
        defaults = self.read(world, suppress_tokens=[1], max_new_tokens=3)
        (notice,) = defaults.unruled
        assert '"suppress_tokens": [1]' in notice.message

    def test_values_that_change_nothing_make_no_rules(self) -> None:
        off = {"typical_p": 1.0, "no_repeat_ngram_size": 0, "remove_invalid_values": False}
        assert not LogitRules(off, VOCABULARY)
