"""Florence-2: answers an image and a task's name with a text, which may name positions.

The gateway imports this module through the task files, so torch and transformers are imported
inside functions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.generating import GenerateStages
from stoker.models.stages.pipelines import ImageStages

_MARKS = ("<s>", "</s>", "<pad>")


class FlorenceStages(ImageStages, GenerateStages):
    """Stages of Florence-2. Only prompts of equal length share a batch; all prompts of a task are
    equal.
    """

    auto_class = "AutoModelForImageTextToText"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self.processor: Any = library.Florence2Processor.from_pretrained(
            str(folder), local_files_only=True
        )
        self.tokenizer: Any = self.processor.tokenizer

    def sample(self, picture: Any, prompt: str, parameters: Mapping[str, Any]) -> Sample:
        """Returns a sample of an image and a prompt: a task's name and its text. Raises
        `InputError`.
        """
        for task in self.processor.task_prompts_without_inputs:
            if task in prompt and prompt != task:
                raise InputError(
                    f"'prompt' must be {task} and nothing else: this task accepts no text.",
                    field="prompt",
                    of_item=False,
                )
        prepared = self.processor(images=picture, text=prompt, return_tensors="pt")
        length = prepared["input_ids"].shape[1]
        limit: int = self.config.text_config.max_position_embeddings
        if length > limit:
            raise InputError(
                f"'prompt' and the image have {length} tokens; this model takes at most {limit}.",
                field="prompt",
                of_item=False,
            )
        names = ("input_ids", "attention_mask", "pixel_values")
        return Sample(
            {name: prepared[name] for name in names},
            {"size": picture.size},
            call=self.call_of(parameters),
            alone=self.alone(parameters),
        )

    def task_of(self, prompt: str) -> str | None:
        """Returns the task that a prompt names, or None."""
        kinds: Mapping[str, str] = self.processor.tasks_answer_post_processing_type
        return next((task for task in kinds if prompt.startswith(task)), None)

    def answer(self, output: Mapping[str, Any]) -> str:
        """Returns the generated text, with the marks of positions but without the marks of the
        text's start and end.
        """
        text = self.text(output, skip_special_tokens=False)
        for mark in _MARKS:
            text = text.replace(mark, "")
        return text.strip()

    def probe(self, length: int, number: int = 0) -> Sample:
        picture = specimens.picture(number)
        return self.sample(picture, "<CAPTION>", {"max_new_tokens": 8})
