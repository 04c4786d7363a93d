"""Kinds of computation of a pipeline's models. The kind decides which engines can run them."""

from enum import StrEnum


class ModelKind(StrEnum):
    PASSES = "passes"
    """Stages around forward passes of one model that can be converted."""
    LOOPS = "loops"
    """Stages of models that loop by themselves or draw random numbers. They cannot be converted."""
    DRAWING = "drawing"
    """Stages that make images or video in many steps with a pipeline of diffusers."""
    TEXT = "text"
    """Language models: tokens in, tokens out, without stages."""
    VISION = "vision"
    """Language models with images in their prompts."""


LANGUAGE = frozenset({ModelKind.TEXT, ModelKind.VISION})
"""Kinds without stages: their answers are written token by token."""
