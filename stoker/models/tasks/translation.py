"""Translation: a text in another language."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages.base import InputError
from stoker.models.stages.generating import GenerationOptions
from stoker.models.stages.seq2seq import CleanUp, Seq2SeqStages, TruncationStrategy
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import TextInputs

Language = Annotated[str, Field(min_length=1, max_length=32)]

_NAMED = 40
"""Maximum number of language codes in an error."""


class TranslationRequest(GenerationOptions, TaskRequest):
    inputs: TextInputs
    src_lang: Language | None = Field(
        default=None,
        description=(
            "Language of the texts, as the model's code, such as `en_XX`. For multilingual models."
        ),
    )
    tgt_lang: Language | None = Field(
        default=None, description="Language to translate into, as the model's code."
    )
    truncation: TruncationStrategy = False
    clean_up_tokenization_spaces: CleanUp = None


class Translation(TypedDict):
    translation_text: str


class TranslationStages(Seq2SeqStages):
    """Stages of translation. Languages are the tokenizer's codes (mBART, NLLB, M2M100) or tasks of
    the model (T5).
    """

    result_field = "translation_text"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._codes = _language_codes(self.tokenizer)
        self._own_source: str | None = self.tokenizer.src_lang if self._codes else None

    def prompt(self, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        source, target = parameters.get("src_lang"), parameters.get("tgt_lang")
        if not self._codes:
            return self._prefix(source, target), {}
        for field, code in (("src_lang", source), ("tgt_lang", target)):
            if code is not None and code not in self._codes:
                raise _unknown(field, code, self._codes)
        # Set for every text, because the previous one may have had another language.
        self.tokenizer.src_lang = source or self._own_source
        return "", {"forced_bos_token_id": self._codes[target]} if target else {}

    def _prefix(self, source: str | None, target: str | None) -> str:
        """Returns the prefix that selects a task of the model, such as "translate English to
        German: ".
        """
        default_prefix = getattr(self.config, "prefix", None) or ""
        if source is None and target is None:
            return default_prefix
        prefixes = {
            name.removeprefix("translation_"): prefix
            for name, prefix in self.task_prefixes().items()
            if name.startswith("translation_")
        }
        if not prefixes:
            field = "src_lang" if source is not None else "tgt_lang"
            raise InputError(
                f"This model has no choice of languages: leave out '{field}'.",
                field=field,
                of_item=False,
            )
        if f"{source}_to_{target}" not in prefixes:
            raise InputError(
                f"This model does not translate '{source}' to '{target}'. "
                f"It translates {', '.join(sorted(prefixes)[:_NAMED]).replace('_', ' ')}.",
                field="tgt_lang",
                of_item=False,
            )
        return prefixes[f"{source}_to_{target}"]


def _language_codes(tokenizer: Any) -> dict[str, int]:
    """Returns a map from language codes to their tokens. It is empty if the tokenizer knows no
    languages.
    """
    codes: Any = getattr(tokenizer, "lang_code_to_id", None)
    if isinstance(codes, dict):
        return cast("dict[str, int]", codes)
    if not hasattr(tokenizer, "src_lang"):
        return {}
    # NLLB's language codes are the tokenizer's extra special tokens.
    return {
        str(code): tokenizer.convert_tokens_to_ids(str(code))
        for code in tokenizer.extra_special_tokens
    }


def _unknown(field: str, code: str, codes: Mapping[str, int]) -> InputError:
    named = ", ".join(sorted(codes)[:_NAMED]) + (", …" if len(codes) > _NAMED else "")
    return InputError(
        f"'{code}' is not a language of this model. It knows: {named}.", field=field, of_item=False
    )


TASK = Task(
    pipeline="translation",
    path="/v1/translations",
    summary="Translate texts",
    request=TranslationRequest,
    # A list with one entry, as the transformers pipeline answered and its clients expect.
    result=list[Translation],
    # The usual purpose of an architecture is named in full, which makes it the more specific
    # pattern.
    architectures=(
        "BartForConditionalGeneration",
        "EncoderDecoderModel",
        "FSMTForConditionalGeneration",
        "LongT5ForCond*",
        "M2M100ForConditionalGeneration",
        "MBartForConditionalGeneration",
        "MT5ForConditionalGeneration",
        "MarianMTModel",
        "NllbMoeForConditionalGeneration",
        "Pegasus*ForCond*",
        "SwitchTransformersForConditionalGeneration",
        "T5ForConditionalGeneration",
        "UMT5ForConditionalGeneration",
    ),
    families=("t5", "marian", "mbart", "m2m_100"),
    example={"inputs": "Today the old man buys a red hat."},
    example_result=[{"translation_text": "Heute kauft der alte Mann einen roten Hut."}],
    stages=TranslationStages,
)
