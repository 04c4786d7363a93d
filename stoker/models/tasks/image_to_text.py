"""Image to text: a caption, or the text in an image."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.blip2 import Blip2Stages
from stoker.models.stages.florence import FlorenceStages
from stoker.models.stages.generating import GenerateStages, GenerationOptions
from stoker.models.stages.pipelines import ImageStages, load_image_processor
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import ImageInputs

_PROBE_TOKENS = 8
_CAPTION = "<CAPTION>"


class ImageToTextRequest(GenerationOptions, MediaRequest):
    inputs: ImageInputs
    prompt: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=10_000,
            description=(
                "Florence-2: the task, `<CAPTION>` by default, and its text. BLIP-2: a "
                "text "
                "to continue. Other models accept no prompt."
            ),
        ),
    ] = None


class Caption(TypedDict):
    generated_text: str


class ImageToTextStages(ImageStages, GenerateStages):
    """Stages of BLIP, GIT and image encoders with a text decoder (TrOCR, Donut, ViT with GPT-2)."""

    auto_class = "AutoModelForImageTextToText"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self.tokenizer: Any = library.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )
        self._image_processor: Any = load_image_processor(folder)

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if "prompt" in parameters:
            raise InputError("This model takes no prompt.", field="prompt", of_item=False)
        call = self.call_of(parameters)
        return [self._sample(self.image(item), call, alone=self.alone(parameters))]

    def _sample(self, picture: Any, call: Any, *, alone: bool = False) -> Sample:
        prepared = self._image_processor(images=[picture], return_tensors="pt")
        return Sample({"pixel_values": prepared["pixel_values"]}, call=call, alone=alone)

    def probe(self, length: int, number: int = 0) -> Sample:
        picture = specimens.picture(number)
        return self._sample(picture, self.call_of({"max_new_tokens": _PROBE_TOKENS}))

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Caption]:
        return [Caption(generated_text=self.text(outputs[0]))]

    def _own_options(self) -> dict[str, Any]:
        options = super()._own_options()
        if self.config.model_type == "blip":
            # BLIP's `generate` stops at this token, even if generation_config.json names another.
            options["eos_token_id"] = self.config.text_config.sep_token_id
        return options


class Pix2StructStages(ImageToTextStages):
    """Pix2Struct. Splits an image of any shape into as many patches as the model accepts."""

    def _sample(self, picture: Any, call: Any, *, alone: bool = False) -> Sample:
        prepared = self._image_processor(images=[picture], return_tensors="pt")
        return Sample(dict(prepared), call=call, alone=alone)


class Blip2CaptionStages(Blip2Stages):
    """Stages of BLIP-2 captions."""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return [self.sample(self.image(item), parameters.get("prompt"), parameters, "prompt")]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Caption]:
        return [Caption(generated_text=self.text(outputs[0]))]


class FlorenceTextStages(FlorenceStages):
    """Florence-2. Positions stay in the text as marks such as `<loc_52>`."""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        prompt = parameters.get("prompt", _CAPTION)
        return [self.sample(self.image(item), prompt, parameters)]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Caption]:
        return [Caption(generated_text=self.answer(outputs[0]))]


TASK = Task(
    pipeline="image-to-text",
    path="/v1/images/to-text",
    summary="Describe images, or read their text",
    request=ImageToTextRequest,
    media={"inputs": "image"},
    result=list[Caption],
    architectures=(
        "BlipForConditionalGeneration",
        "Blip2ForConditionalGeneration",
        "Florence2ForConditionalGeneration",
        "GitForCausalLM",
        "Pix2StructForConditionalGeneration",
        "VisionEncoderDecoderModel",
    ),
    families=("blip", "blip-2", "florence2", "git", "pix2struct", "vision-encoder-decoder"),
    example={"inputs": "https://images.example/cat.jpg"},
    example_result=[{"generated_text": "a black cat on a red sofa"}],
    stages=by_kind(
        ImageToTextStages,
        {
            "blip-2": Blip2CaptionStages,
            "florence2": FlorenceTextStages,
            "pix2struct": Pix2StructStages,
        },
    ),
)
