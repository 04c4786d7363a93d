"""Operations that follow OpenAI's API. A new one needs a new file here and one line in this
module.
"""

from typing import Any

from stoker.inference.openai import generation, images, response_calls, speech, transcriptions
from stoker.inference.operation import Operation

OPERATIONS: tuple[Operation[Any], ...] = (
    *generation.OPERATIONS,
    *response_calls.OPERATIONS,
    *images.OPERATIONS,
    speech.OPERATION,
    *transcriptions.OPERATIONS,
)
