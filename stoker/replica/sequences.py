"""The sequences that a language model continues for a request, and the choices that read its
output.
"""

from collections.abc import Iterator
from dataclasses import replace

from stoker.models.chat.answers.choices import Choice, TextRequest
from stoker.models.chat.answers.detokenizing import Detokenizer, Stops
from stoker.models.chat.answers.dialect import AnyReader
from stoker.models.chat.answers.echo import Echo, placed
from stoker.models.chat.answers.token_list_writer import TokenListWriter
from stoker.models.chat.forms.forms import Forms
from stoker.models.chat.prompts import token_lists
from stoker.models.chat.prompts.prompts import Prepared, Prompts
from stoker.models.llm.interface import Submission
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import MAX_SCORED, Conversation, Generation, Prompt


class Sequences:
    """Numbers sequences and keeps the choice of each until it ends.

    One thread creates them; others look them up and drop them.
    """

    def __init__(self, prompts: Prompts, vocabulary: int) -> None:
        """
        Args:
            vocabulary: width of the model's logits.
        """
        self._prompts = prompts
        self._dialect = prompts.dialect
        self._forms = Forms(prompts, self._dialect, vocabulary)
        self._choices: dict[int, Choice] = {}
        self._last = 0

    def choice(self, sequence: int) -> Choice | None:
        """Returns the choice of a sequence that has not ended."""
        return self._choices.get(sequence)

    def drop(self, sequence: int) -> None:
        self._choices.pop(sequence, None)

    def request_ids(self) -> set[int]:
        """Returns the requests with sequences that have not ended."""
        return {choice.request.id for choice in list(self._choices.values())}

    def prepare(self, request: TextRequest) -> list[Submission]:
        """Creates a sequence for each answer to each prompt, and a choice in the request for each.

        Raises `InputError`. Creates none if tokens are only counted or listed.
        """
        generation = request.generation
        if isinstance(request.writer, TokenListWriter):
            request.writer.content = token_lists.content(self._prompts, generation)
            return []
        if generation.sampling.logprobs is not None:
            # Log probabilities are reported with the tokens' bytes. This builds their table before
            # any step.
            _ = self._forms.problem
        submissions: list[Submission] = []
        for place, prompt in enumerate(generation.prompts):
            field = generation.place(place)
            prepared = self._prompts.prepare(
                prompt, field, generation.sampling.max_tokens, generation.cut
            )
            request.usage.prompt += len(prepared.tokens)
            if generation.only_counts:
                continue
            _check_scored(request)
            submissions += self._answers(request, place, prompt, prepared)
        return submissions

    def _answers(
        self, request: TextRequest, place: int, prompt: Prompt, prepared: Prepared
    ) -> Iterator[Submission]:
        """Yields the sequences of one prompt. Sequences after the first share its computation."""
        generation = request.generation
        sampling = self._prompts.limited(prepared, generation, generation.place(place))
        after = self._dialect.end_of_reasoning(prepared.text)
        ends = self._dialect.ends(prepared.text)
        # A text to complete is no conversation and contains no reasoning.
        talks = isinstance(prompt, Conversation)
        may_reason = talks and self._dialect.may_reason(prepared.text)
        form = self._forms.form(generation, after, ends, may_reason=may_reason)
        echo = self._echo(generation, prompt, prepared)
        first: int | None = None
        for number in range(generation.n):
            choice = self._choice(request, place * generation.n + number, prompt, prepared)
            choice.echo = echo and replace(echo, logprobs=[])
            yield Submission(
                id=choice.sequence,
                prompt=prepared.tokens,
                sampling=sampling.of(number),
                matcher=self._forms.matcher(form, after) if form else None,
                after=first,
                media=prepared.media,
                key=request.key,
                tier=request.tier,
                adapter=request.adapter,
                rules=self._prompts.defaults.rules,
            )
            first = choice.sequence if first is None else first

    def _choice(
        self, request: TextRequest, index: int, prompt: Prompt, prepared: Prepared
    ) -> Choice:
        generation = request.generation
        reader: AnyReader | None = None
        if isinstance(prompt, Conversation):
            tools, either = generation.tools, generation.guide is not None
            offered = tools.offered() if tools else []
            reader = self._dialect.reader(prepared.text, tools=offered, either=either)
        sampling = generation.sampling
        hidden: frozenset[int] = self._prompts.hidden if sampling.skip_special else frozenset()
        self._last += 1
        choice = Choice(
            request,
            index,
            self._last,
            Detokenizer(self._prompts.tokenizer.backend_tokenizer, hidden),
            Stops(
                sampling.stop or self._prompts.defaults.stop,
                included=sampling.include_stop,
            ),
            reader,
            self._forms.bytes_of,
        )
        request.choices.append(choice)
        self._choices[choice.sequence] = choice
        return choice

    def _echo(self, generation: Generation, prompt: Prompt, prepared: Prepared) -> Echo | None:
        if not generation.echo or isinstance(prompt, Conversation):
            return None
        text, offsets = placed(self._prompts.tokenizer, prompt)
        if generation.sampling.prompt_logprobs is None:
            return Echo(text)
        return Echo(text, [self._text_of(token) for token in prepared.tokens], offsets)

    def _text_of(self, token: int) -> str:
        content = self._forms.bytes_of(token)
        if content is None:
            return str(self._prompts.tokenizer.convert_ids_to_tokens(token) or "")
        return content.decode("utf-8", "replace")


def _check_scored(request: TextRequest) -> None:
    """Raises `InputError` if more prompt tokens need scores than an answer may hold."""
    generation = request.generation
    tokens = request.usage.prompt * generation.n
    if generation.sampling.prompt_logprobs is not None and tokens > MAX_SCORED:
        raise InputError(
            f"'echo' with 'logprobs' scores every token of the prompts: here {tokens} or more. "
            f"A request may have at most {MAX_SCORED}. Send fewer prompts at once.",
            field="prompt",
            of_item=False,
        )
