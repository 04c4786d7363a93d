"""Endpoints of OpenAI's conventions. A new endpoint needs a new file here and one line in this
module.
"""

from typing import Any

from fastapi import APIRouter

from stoker.inference.convention import Convention
from stoker.inference.openai import generation, images, speech, transcriptions

CONVENTIONS: tuple[Convention[Any], ...] = (
    *generation.CONVENTIONS,
    *images.CONVENTIONS,
    speech.CONVENTION,
    *transcriptions.CONVENTIONS,
)
ROUTERS: tuple[APIRouter, ...] = (
    generation.router,
    images.router,
    speech.router,
    transcriptions.router,
)
