"""Tests of `tiny-vision` as packaged."""

from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor

from stoker.demo.setup import MODELS as SHIPPED
from tests.demo.models.folders import check
from tools.demo_models import seeing

FOLDER = SHIPPED / "tiny-vision"


def test_folder() -> None:
    check("tiny-vision", "image-text-to-text")


def test_prompts_are_those_of_the_processor() -> None:
    """The prompts of the training data have all placeholders written out, as the processor writes
    them.
    """
    processor = AutoProcessor.from_pretrained(FOLDER, local_files_only=True)
    scene, question, _ = seeing.held_out(1)[0]
    content = [{"type": "image", "image": scene.image}, {"type": "text", "text": question}]
    encoded = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    text = seeing.prompt(question, seen=True)
    assert encoded["input_ids"] == [processor.tokenizer(text)["input_ids"]]


def test_answers_about_shapes_never_seen_together() -> None:
    model = AutoModelForImageTextToText.from_pretrained(FOLDER, local_files_only=True)
    processor = AutoProcessor.from_pretrained(FOLDER, local_files_only=True)
    images = AutoImageProcessor.from_pretrained(FOLDER, local_files_only=True)
    assert seeing.accuracy(model, processor.tokenizer, images, seeing.held_out(150)) >= 0.9
