"""`python -m tools.demo_models [NAME ...] [--out DIR]` trains the named models, or all."""

import argparse
import logging
import time
from pathlib import Path

from stoker.demo.setup import MODELS
from tools.demo_models import (
    captioner,
    chat,
    clip,
    detector,
    digits,
    drawing,
    encoder,
    fill_mask,
    image_encoder,
    image_makers,
    nli,
    random_weights,
    reader,
    reranker,
    seeing,
    segmenter,
    sentiment,
    sounds,
    summarizer,
    tagger,
    transcriber,
    translator,
    video,
    video_maker,
    vqa,
)

BUILDS = {
    "tiny-ner": tagger.build,
    "tiny-fill-mask": fill_mask.build,
    "tiny-sentiment": sentiment.build,
    "tiny-encoder": encoder.build,
    "tiny-digits": digits.build,
    "tiny-segmenter": segmenter.build,
    "tiny-clip": clip.build,
    "tiny-detector": detector.build,
    "tiny-image-encoder": image_encoder.build,
    "tiny-sounds": sounds.build,
    "tiny-video": video.build,
    "tiny-vqa": vqa.build,
    "tiny-captioner": captioner.build,
    "tiny-reranker": reranker.build,
    "tiny-qa": reader.build,
    "tiny-translator": translator.build,
    "tiny-summarizer": summarizer.build,
    "tiny-nli": nli.build,
    "tiny-chat": chat.build,
    "tiny-vision": seeing.build,
    "tiny-transcriber": transcriber.build,
    "tiny-draw": drawing.build,
    **random_weights.BUILDS,
    "random-image-maker": image_makers.build_image_maker,
    "random-inpainter": image_makers.build_inpainter,
    **video_maker.BUILDS,
}


def main() -> None:
    """Builds the models one after another. Each uses its own seed, so the order does not matter."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BUILDS)}")
    parser.add_argument("--out", type=Path, default=MODELS, metavar="DIR")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - BUILDS.keys())
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name in options.names or BUILDS:
        started = time.perf_counter()
        BUILDS[name](options.out / name)
        logging.info("%s: built in %.0f s", name, time.perf_counter() - started)


if __name__ == "__main__":
    main()
