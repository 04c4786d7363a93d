"""Image feature extraction against the models themselves, family by family."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.models.tasks.image_feature_extraction import ImageFeatureExtractionRequest
from tests.support.compare import equal
from tests.support.local import Local
from tests.support.media import image, image_media
from tests.support.vision import SIZE, SQUARE, TOWER, VISION, clip_text, clip_tokenizer
from tests.tasks import test_zero_shot_image_classification

IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32))]
Model = Any
Expected = Callable[[Model, torch.Tensor], torch.Tensor]
"""Maps a model and the pixels of an image to a vector of shape (1, width)."""


def save(model: Model, folder: Path) -> None:
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size=SQUARE).save_pretrained(folder)


def vit(folder: Path) -> Expected:
    save(transformers.ViTModel(transformers.ViTConfig(**VISION)), folder)
    return lambda model, pixels: model(pixels).pooler_output


def vit_classifier(folder: Path) -> Expected:
    """Saves a classifier without a pooler. Its features are the mean over the 16 patches, without
    [CLS].
    """
    config = transformers.ViTConfig(**VISION, num_labels=7)
    save(transformers.ViTForImageClassification(config), folder)
    return lambda model, pixels: model(pixels).last_hidden_state[:, -16:].mean(1)


def dinov2(folder: Path) -> Expected:
    config = transformers.Dinov2Config(**TOWER, image_size=SIZE, patch_size=8)
    save(transformers.Dinov2Model(config), folder)
    return lambda model, pixels: model(pixels).last_hidden_state[:, 0]


def clip(folder: Path) -> Expected:
    tokenizer = clip_tokenizer(77)
    config = transformers.CLIPConfig(
        text_config=clip_text(tokenizer, 77), vision_config=VISION, projection_dim=24
    )
    save(transformers.CLIPModel(config), folder)
    return lambda model, pixels: model.visual_projection(model.vision_model(pixels).pooler_output)


def metaclip_2(folder: Path) -> Expected:
    test_zero_shot_image_classification.metaclip_2(folder)
    return lambda model, pixels: model.visual_projection(model.vision_model(pixels).pooler_output)


def align(folder: Path) -> Expected:
    test_zero_shot_image_classification.align(folder)
    return lambda model, pixels: model.vision_model(pixels).pooler_output


def vit_mae(folder: Path) -> Expected:
    """Saves a ViT MAE. Its features are those of a ViT with its weights, which sees the whole
    image. In training most of the image is hidden.
    """
    save(_sharpened(transformers.ViTMAEModel(transformers.ViTMAEConfig(**VISION))), folder)
    return _seeing_all


def vit_mae_pretraining(folder: Path) -> Expected:
    config = transformers.ViTMAEConfig(
        **VISION,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
    )
    save(_sharpened(transformers.ViTMAEForPreTraining(config)), folder)
    return _seeing_all


def _sharpened(model: Model) -> Model:
    """Scales the weights so that positions and patches differ more than random ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.dim() > 1 else 1)
    return model


def _seeing_all(model: Model, pixels: torch.Tensor) -> torch.Tensor:
    parts = model.embeddings
    patches = parts.patch_embeddings(pixels) + parts.position_embeddings[:, 1:]
    first = (parts.cls_token + parts.position_embeddings[:, :1]).expand(len(pixels), -1, -1)
    hidden = torch.cat([first, patches], 1)
    for layer in model.layers:
        hidden = layer(hidden)
    return model.layernorm(hidden)[:, 1:].mean(1)


def siglip_vision(folder: Path) -> Expected:
    save(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VISION)), folder)
    return lambda model, pixels: model(pixels).pooler_output


def convnext_classifier(folder: Path) -> Expected:
    """Saves a classifier. The norm after pooling belongs to the base model, so the classifier's
    file contains it.
    """
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_labels=7
    )
    save(transformers.ConvNextForImageClassification(config), folder)
    return lambda model, pixels: model.layernorm(model(pixels).last_hidden_state.mean((2, 3)))


def resnet(folder: Path) -> Expected:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 32], depths=[1, 1, 1, 1], layer_type="basic"
    )
    save(transformers.ResNetModel(config), folder)
    return lambda model, pixels: model(pixels).last_hidden_state.mean((2, 3))


FAMILIES = [
    vit,
    vit_classifier,
    vit_mae,
    vit_mae_pretraining,
    dinov2,
    clip,
    metaclip_2,
    align,
    siglip_vision,
    convnext_classifier,
    resnet,
]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    expected = request.param(folder)
    local = Local("image-feature-extraction", folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)

    def vector(picture: Any) -> list[float]:
        pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            return expected(local.model, pixels)[0].tolist()

    yield local, vector
    local.close()


def test_alone(case: Any) -> None:
    local, vector = case
    for picture in IMAGES:
        equal(local.ask({"inputs": image_media(picture)}), vector(picture))


def test_in_a_mixed_batch(case: Any) -> None:
    local, vector = case
    images = [image_media(picture) for picture in IMAGES]
    local.batches.clear()
    for answer in local.ask_together([{"inputs": images}] * 2):
        equal(answer, [vector(picture) for picture in IMAGES])
    assert max(local.batches) > 1


def test_the_same_after_loading_again(tmp_path: Path) -> None:
    """Answers do not change after a reload. A random pooler would return different numbers each
    time.
    """
    vit_classifier(tmp_path)
    answers: list[Any] = []
    for seed in (1, 2):
        transformers.set_seed(seed)
        local = Local("image-feature-extraction", tmp_path)
        answers.append(local.ask({"inputs": image_media(IMAGES[0])}))
        local.close()
    equal(*answers)


def test_refused() -> None:
    with pytest.raises(ValidationError):
        ImageFeatureExtractionRequest.model_validate({"inputs": "aGk=", "pool": True})
