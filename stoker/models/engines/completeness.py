"""Checks that a model received all its weights from its files.

transformers fills missing weights with random numbers, and such a model answers nonsense.
"""

import contextlib
import logging
import re
from collections.abc import Collection, Generator
from typing import Any

_SHOWN = 3
_TRAINING = re.compile(r"(^|\.)(masked_spec_embed|mask_token)$")
"""Weights that replace hidden inputs during training. Many models are published without them."""
_POOLER = re.compile(r"(^|\.)pooler\.")
"""Weights of a pooler. For a model without a head, callers that use its pooler check whether it is
stored.
"""
_KEYS = (
    (re.compile(r"(word_embeddings|embed_tokens|shared|wte|lm_head)\."), "vocab_size"),
    (re.compile(r"(position_embeddings|embed_positions|wpe)\."), "max_position_embeddings"),
    (re.compile(r"(^|\.)(classifier|score|classification_head|qa_outputs)\."), "id2label"),
)
"""Maps names of tensors to the key of config.json that most often decides their shape."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REPORTED = ("above report", "loading state_dict")
"""Words of transformers' errors about weights that do not fit. transformers logs the cause."""


class MissingWeightsError(ValueError):
    """The files lack weights of the model."""


class UnfitWeightsError(ValueError):
    """The files have weights that do not fit the model of their configuration."""


def loaded(kind: Any, *given: Any, **options: Any) -> Any:
    """Loads a model with `kind.from_pretrained` and checks that it is complete.

    Weights that are tied to others or computed count as present, as transformers reports them.

    Raises:
        MissingWeightsError: weights are missing; the message names some of them.
        UnfitWeightsError: weights have other shapes than the configuration says, or cannot be
            converted; the message names some of them.
    """
    with _reports() as reports:
        try:
            model, loading_info = kind.from_pretrained(
                *given, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        except RuntimeError as error:
            if not any(words in str(error) for words in _REPORTED):
                raise
            message = " ".join([*reports, str(error)])
            raise UnfitWeightsError(f"the weights do not fit the model: {message}") from error
    check_shapes(model, loading_info.get("mismatched_keys") or ())
    check(model, loading_info["missing_keys"])
    return model


def check_shapes(model: Any, mismatched: Collection[tuple[str, Any, Any]]) -> None:
    """Raises `UnfitWeightsError` if weights have other shapes than the model's.

    Args:
        mismatched: for each weight, its name, its shape in the files, and its shape by the
            configuration.
    """
    if not mismatched:
        return
    listed = sorted(mismatched, key=lambda entry: entry[0])
    shown = "; ".join(
        f"{name} has the shape {list(stored)} in the files, but {list(expected)} in config.json"
        for name, stored, expected in listed[:_SHOWN]
    )
    more = f" (and {len(listed) - _SHOWN} more)" if len(listed) > _SHOWN else ""
    key = next((key for name, *_ in listed for known, key in _KEYS if known.search(name)), None)
    advice = f"Correct '{key}' in config.json, or upload" if key else "Upload"
    raise UnfitWeightsError(
        f"the weights do not match the {type(model).__name__} that config.json "
        f"describes: {shown}{more}. {advice} the config.json that these weights were "
        "saved with"
    )


def check(model: Any, missing: Collection[str]) -> None:
    """Raises `MissingWeightsError` if parameters are among the missing keys.

    Buffers do not count: their class initializes them.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    is_headless = type(model).__name__.endswith("Model")
    lacking = sorted(
        name
        for name in parameters.intersection(missing)
        if not _TRAINING.search(name) and not (is_headless and _POOLER.search(name))
    )
    if lacking:
        shown = ", ".join(lacking[:_SHOWN])
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise MissingWeightsError(
            f"the files lack {len(lacking)} of the weights that the configuration of "
            f"{type(model).__name__} requires: {shown}{more}. Save the model with all "
            "its weights"
        )


@contextlib.contextmanager
def _reports() -> Generator[list[str]]:
    """Collects the reports on loading that transformers logs within the block, each in one line."""
    reports: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if "LOAD REPORT" in message:
                # The first line names the folder, a path of this machine.
                _, _, report = _COLOURS.sub("", message).partition("\n")
                reports.append(" ".join(report.split()))

    handler, logger = Handler(logging.WARNING), logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        yield reports
    finally:
        logger.removeHandler(handler)
