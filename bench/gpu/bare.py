"""Bare loops on the device, without a server: what the same card can do with plain transformers.

`python -m bench.gpu.bare` answers each line of JSON on stdin with a line of JSON. A task names a
function of `TASKS` and its arguments. A failed task is answered with its error.
"""

import base64
import io
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from bench.common import cores
from bench.peers.answering import answer

REPEATS = 2
ALONE = 32
"""Number of inputs that are computed one at a time."""
CLASSES = {
    "tokens": "AutoModelForTokenClassification",
    "embedding": "AutoModel",
    "image": "AutoModelForImageClassification",
}


def _torch() -> Any:
    import torch

    return torch


def _device() -> str:
    return "cuda" if _torch().cuda.is_available() else "cpu"


def _dtypes() -> list[str]:
    return ["float32", "bfloat16"] if _device() == "cuda" else ["float32"]


def _sync() -> None:
    if _device() == "cuda":
        _torch().cuda.synchronize()


def _timed(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Returns the shortest of several durations in seconds, after a run that is not counted."""
    work()
    seconds: list[float] = []
    for _ in range(repeats):
        _sync()
        began = time.perf_counter()
        work()
        _sync()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@lru_cache(maxsize=1)
def _loaded(kind: str, folder: str) -> tuple[Any, Any]:
    """Returns a model on the device in float32 and its tokenizer or image processor."""
    import transformers

    model = getattr(transformers, CLASSES[kind]).from_pretrained(folder).to(_device()).eval()
    if kind == "image":
        return model, transformers.ViTImageProcessorPil.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def encode(kind: str, folder: str, inputs: Sequence[str], batch: int) -> dict[str, Any]:
    """Computes all inputs in batches, in each dtype. Returns inputs per second from text or file to
    numbers on the CPU, and the seconds of one input alone.

    The answers are computed one at a time in float32.
    """
    torch = _torch()
    model, prepare = _loaded(kind, folder)
    rates: dict[str, float] = {}
    alone: dict[str, float] = {}
    with torch.inference_mode(), ThreadPoolExecutor(cores()) as threads:
        run = _runner(kind, model, prepare, threads)
        answers = [_answer(kind, model, prepare, run([text])[0], text) for text in inputs]
        # Similar lengths share a batch, which a server cannot choose.
        ordered = sorted(inputs, key=len) if kind != "image" else list(inputs)
        groups = [ordered[at : at + batch] for at in range(0, len(ordered), batch)]
        some = inputs[:ALONE]
        for dtype in _dtypes():
            model.to(getattr(torch, dtype))
            rates[dtype] = len(inputs) / _timed(lambda: [run(group) for group in groups])
            alone[dtype] = _timed(lambda: [run([text]) for text in some], 1) / len(some)
    # Its weights were rounded.
    _loaded.cache_clear()
    return {"per_s": rates, "alone_s": alone, "answers": answers}


def _runner(
    kind: str, model: Any, prepare: Any, threads: ThreadPoolExecutor
) -> Callable[[Sequence[str]], Any]:
    """Returns a function that computes a batch and returns float32 numbers on the CPU."""
    torch = _torch()

    def image(text: str) -> Any:
        from PIL import Image

        pixels = Image.open(io.BytesIO(base64.b64decode(text)))
        return prepare([pixels], return_tensors="pt")["pixel_values"][0]

    def run(group: Sequence[str]) -> Any:
        if kind == "image":
            pixels = torch.stack(list(threads.map(image, group)))
            return model(pixels.to(_device(), model.dtype)).logits.float().cpu()
        asked = prepare(list(group), return_tensors="pt", padding=True).to(_device())
        output = model(**asked)
        if kind == "tokens":
            return output.logits.float().cpu()
        mask = asked["attention_mask"][..., None]
        hidden = output.last_hidden_state * mask
        return (hidden.sum(1) / mask.sum(1)).float().cpu()

    return run


def _answer(kind: str, model: Any, prepare: Any, output: Any, text: str) -> Any:
    """Returns the answer of one input in the form of Stoker's."""
    if kind == "embedding":
        return output.tolist()
    scores = output.softmax(-1)
    names = model.config.id2label
    if kind == "image":
        score, label = scores.max(-1)
        return [{"label": names[int(label)], "score": float(score)}]
    spans = prepare(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    rows: list[dict[str, Any]] = []
    marks = zip(spans["offset_mapping"], spans["special_tokens_mask"], scores, strict=True)
    for (start, end), is_special, row in marks:
        if not is_special:
            score, label = row.max(-1)
            rows.append(
                {"entity": names[int(label)], "score": float(score), "start": start, "end": end}
            )
    return rows


@lru_cache(maxsize=1)
def _language_model(folder: str, dtype: str) -> Any:
    import transformers

    kind = getattr(_torch(), dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
    return model.to(_device()).eval()


def chat(folder: str, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
    """Returns tokens per second of `generate` and of a CUDA graph over a static cache, for one
    batch of all prompts, and the tokens of the second.
    """
    from bench.gpu.decode import StaticDecoder

    torch = _torch()
    model = _language_model(folder, "bfloat16")
    ids = torch.tensor(prompts, device=_device())
    wish = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    count = len(prompts) * tokens
    with torch.inference_mode():
        mask = torch.ones_like(ids)
        plain_s = _timed(
            lambda: model.generate(ids, attention_mask=mask, pad_token_id=0, **wish), 1
        )
        decoder = StaticDecoder(model, len(prompts), ids.shape[1] + tokens + 8)
        graph_s = _timed(lambda: decoder.generate(ids, tokens))
        chosen = decoder.generate(ids, tokens).tolist()
    return {"generate": count / plain_s, "graph": count / graph_s, "chosen": chosen}


def leads(folder: str, prompts: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]]) -> Any:
    """Returns, for each sequence, the largest lead of the best next token over the chosen one, in
    standard deviations of the logits, by the model in float32. It is 0 if all tokens were the most
    likely ones.
    """
    torch = _torch()
    model = _language_model(folder, "float32")
    found: list[float] = []
    with torch.inference_mode():
        for prompt, answered in zip(prompts, chosen, strict=True):
            ids = torch.tensor([[*prompt, *answered]], device=_device())
            logits = model(ids, logits_to_keep=len(answered) + 1).logits[0, :-1]
            picked = logits.gather(-1, ids[0, -len(answered) :, None])[:, 0]
            found.append(float(((logits.max(-1).values - picked) / logits.std(-1)).max()))
    return found


def start(folder: str, text: str) -> float:
    """Returns the seconds to load a token classifier and compute one text, in a process that has
    its libraries and its device context already.
    """
    _loaded.cache_clear()
    began = time.perf_counter()
    model, prepare = _loaded("tokens", folder)
    with _torch().inference_mode():
        model(**prepare(text, return_tensors="pt").to(_device())).logits.float().cpu()
    return time.perf_counter() - began


_held: list[Any] = []


def hold(size: int) -> float:
    """Allocates device memory with random content. Returns a checksum."""
    torch = _torch()
    _held[:] = [torch.rand(size // 4, device=_device())]
    return checksum()


def checksum() -> float:
    """Returns the checksum of the held memory."""
    return float(_held[0].double().sum())


def forget() -> bool:
    """Frees all models and memory, except for the device context."""
    _held.clear()
    _loaded.cache_clear()
    _language_model.cache_clear()
    if _device() == "cuda":
        _torch().cuda.empty_cache()
    return True


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (encode, chat, leads, start, hold, checksum, forget)
}


def _run(task: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": TASKS[task["task"]](**task["arguments"])}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:600]}


def main() -> None:
    def ready() -> Callable[[Any], Any]:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        return _run

    answer(ready)


if __name__ == "__main__":
    main()
