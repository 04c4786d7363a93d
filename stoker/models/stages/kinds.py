"""How the models of a pipeline compute an answer: that decides which engines can run them."""

from enum import StrEnum


class ModelKind(StrEnum):
    PASSES = "passes"
    """Stages around forward passes of one model, which can be converted."""
    LOOPS = "loops"
    """Stages whose model loops by itself, or draws random numbers: no conversion follows that."""
    DRAWING = "drawing"
    """Stages that make images or video with a pipeline of diffusers, in many steps."""
    TEXT = "text"
    """Language models: tokens in, tokens out, without stages."""
    VISION = "vision"
    """Language models whose prompts hold images."""


LANGUAGE = frozenset({ModelKind.TEXT, ModelKind.VISION})
"""Kinds that have no stages: their answers are written token by token."""
