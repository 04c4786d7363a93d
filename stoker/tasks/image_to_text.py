"""Image to text: a caption, or the text that an image shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from stoker.replica.generation import GenerateStages, GenerationOptions
from stoker.replica.pipelines import ImageStages
from stoker.replica.stages import Sample
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import ImageInputs

_PROBE_TOKENS = 8


class ImageToTextRequest(GenerationOptions, MediaRequest):
    inputs: ImageInputs


class Caption(TypedDict):
    generated_text: str


class ImageToTextStages(ImageStages, GenerateStages):
    """BLIP, GIT, and an encoder of images with a decoder of text (TrOCR, Donut, ViT with GPT-2)."""

    auto_class = "AutoModelForImageTextToText"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self.tokenizer: Any = library.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )
        self._image_processor: Any = library.AutoImageProcessor.from_pretrained(
            str(folder), local_files_only=True
        )

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        call = self.call_of(parameters)
        return [self._sample(self.image(item), call, alone=self.alone(parameters))]

    def _sample(self, picture: Any, call: Any, *, alone: bool = False) -> Sample:
        prepared = self._image_processor(images=[picture], return_tensors="pt")
        return Sample({"pixel_values": prepared["pixel_values"]}, call=call, alone=alone)

    def probe(self, length: int) -> Sample:
        from PIL import Image

        picture = Image.new("RGB", (320, 240), "gray")
        return self._sample(picture, self.call_of({"max_new_tokens": _PROBE_TOKENS}))

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Caption]:
        return [Caption(generated_text=self.text(outputs[0]))]

    def _own_options(self) -> dict[str, Any]:
        own = super()._own_options()
        if self.config.model_type == "blip":
            # BLIP's `generate` stops at this token, whatever its generation_config.json says.
            own["eos_token_id"] = self.config.text_config.sep_token_id
        return own


TASK = Task(
    pipeline="image-to-text",
    path="/v1/images/to-text",
    summary="Describe images, or read their text",
    request=ImageToTextRequest,
    media={"inputs": "image"},
    result=list[Caption],
    architectures=("BlipForConditionalGeneration", "GitForCausalLM", "VisionEncoderDecoderModel"),
    families=("blip", "git", "vision-encoder-decoder"),
    example={"inputs": "https://images.example/cat.jpg", "max_new_tokens": 20},
    example_result=[{"generated_text": "a black cat on a red sofa"}],
    stages=ImageToTextStages,
)
