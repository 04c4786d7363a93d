"""BLIP-2: a language model that continues an image and a text.

The gateway imports this module through the task files, so torch and transformers are imported
inside functions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.generating import GenerateStages, settle
from stoker.models.stages.pipelines import ImageStages, load_image_processor


class Blip2Stages(ImageStages, GenerateStages):
    """Stages of BLIP-2. Only texts of equal length share a batch, because many requests use the
    same prompt anyway.
    """

    auto_class = "AutoModelForImageTextToText"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self.tokenizer: Any = library.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )
        self._image_processor: Any = load_image_processor(folder)

    def attach(self, model: Any) -> None:
        super().attach(model)
        # The language model generates by its own configuration.
        self._generation_config = model.language_model.generation_config
        self.notices = settle(self._generation_config)
        self._goes_on = not model.language_model.config.is_encoder_decoder

    def sample(
        self, picture: Any, text: str | None, parameters: Mapping[str, Any], field: str
    ) -> Sample:
        """Returns a sample of an image and the text to continue. Raises `InputError`.

        Args:
            field: Request field of the text, for errors.
        """
        import torch

        places = [self.config.image_token_index] * self.config.num_query_tokens
        prompt_tokens: list[int] = (
            [self.config.text_config.bos_token_id]
            if text is None
            else self.tokenizer(text)["input_ids"]
        )
        tokens = torch.tensor([places + prompt_tokens])
        length, limit = tokens.shape[1], self._positions()
        if length > limit:
            raise InputError(
                f"The text has {len(prompt_tokens)} tokens; with an image, this model takes "
                f"at most {limit - len(places)}.",
                field=field,
                of_item=False,
            )
        pixels = self._image_processor(images=[picture], return_tensors="pt")["pixel_values"]
        return Sample(
            {
                "pixel_values": pixels,
                "input_ids": tokens,
                "attention_mask": torch.ones_like(tokens),
            },
            call=self.call_of(parameters, prompt=length if self._goes_on else 1),
            alone=self.alone(parameters),
        )

    def _positions(self) -> int:
        """Returns the maximum number of tokens that the language model accepts."""
        most = getattr(self.config.text_config, "max_position_embeddings", None)
        return most if isinstance(most, int) else self.tokenizer.model_max_length

    def prompt_length(self, output: Mapping[str, Any]) -> int:
        return output["input_ids"].shape[1] if self._goes_on else 1

    def probe(self, length: int, number: int = 0) -> Sample:
        picture = specimens.picture(number)
        return self.sample(picture, None, {"max_new_tokens": 8}, "inputs")
