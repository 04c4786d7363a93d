"""Image classification: the labels of an image."""

from stoker.models.stages.pipelines import ImagePipelineStages
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import FunctionToApply, ImageInputs, Label, TopK


class ImageClassificationRequest(MediaRequest):
    inputs: ImageInputs
    top_k: TopK = 5
    function_to_apply: FunctionToApply | None = None


class ImageClassificationStages(ImagePipelineStages):
    pipeline = "ImageClassificationPipeline"
    auto_class = "AutoModelForImageClassification"


TASK = Task(
    pipeline="image-classification",
    path="/v1/classifications/image",
    summary="Classify images",
    request=ImageClassificationRequest,
    media={"inputs": "image"},
    result=list[Label],
    architectures=("*ForImageClassification*",),
    families=("convnext", "dinov2", "resnet", "siglip", "swin", "vit"),
    example={"inputs": "https://images.example/cat.jpg", "top_k": 2},
    example_result=[{"label": "cat", "score": 0.98}, {"label": "dog", "score": 0.01}],
    stages=ImageClassificationStages,
)
