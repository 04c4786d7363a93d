"""Helpers that create adapters with PEFT and compute expected results with them."""

from pathlib import Path
from typing import Any

import torch
import transformers

library: Any = transformers


def made(
    folder: Path,
    base: Path,
    *,
    loader: str = "AutoModelForTokenClassification",
    seed: int = 1,
    **options: Any,
) -> Any:
    """Saves an adapter of a base model with random matrices. Returns the adapted model for
    comparison.
    """
    import peft

    model = getattr(library, loader).from_pretrained(base)
    config = {"r": 4, "lora_alpha": 16, "init_lora_weights": False, **options}
    transformers.set_seed(seed)
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(**config))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "modules_to_save" in name:
                value.normal_(0, 0.5)
            elif "lora_" in name:
                value.normal_(0, 0.3)
            elif name.endswith(".bias") and value.requires_grad:
                # Trained biases only.
                value.normal_(0, 0.3)
    adapted.save_pretrained(folder)
    return adapted.eval()
