"""Images on a real server through the real openai SDK, compared with diffusers called directly."""

import base64
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import httpx
import numpy
import openai
import pytest
import torch
from PIL import Image

from tests.artifacts.support import eventually
from tests.support import diffusion
from tests.support.deploying import deploy, deployment, push
from tests.support.hub import inference_client
from tests.support.media import image, png
from tests.support.models import tiny_bert
from tests.support.server import Server

PROMPT = "a red circle"
STEPS = 4
SEED = 11
PICTURE = image(0, (32, 32))
GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("images")
    families = {"draw": diffusion.stable_diffusion, "dream": diffusion.ddpm}
    return {name: diffusion.made(family, root / name) for name, family in families.items()}


@pytest.fixture(scope="module")
def account(server: Server, folders: dict[str, Path]) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("images") as client:
        made = {name: deploy(client, folder, name) for name, folder in folders.items()}
        assert made["draw"]["pipeline"] == "text-to-image"
        assert made["dream"]["pipeline"] == "unconditional-image-generation"
        yield client


@pytest.fixture(scope="module")
def client(server: Server, account: httpx.Client) -> openai.OpenAI:
    key = str(account.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def pipe(folders: dict[str, Path]) -> Any:
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folders["draw"])
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def extra(**options: Any) -> dict[str, Any]:
    return {"seed": SEED, "num_inference_steps": STEPS} | options


def drawn(client: openai.OpenAI, prompt: Any = PROMPT, **options: Any) -> list[Image.Image]:
    options = {"extra_body": extra(), "response_format": "b64_json"} | options
    answer = client.images.generate(model="draw", prompt=prompt, **options)
    return opened(answer)


def opened(answer: Any) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(entry.b64_json))) for entry in answer.data]


def same(found: Image.Image, wanted: Image.Image) -> bool:
    return numpy.array_equal(numpy.asarray(found), numpy.asarray(wanted))


def direct(pipe: Any, seed: int = SEED, **options: Any) -> Image.Image:
    generator = torch.Generator("cpu").manual_seed(seed)
    options = {"prompt": PROMPT, "num_inference_steps": STEPS} | options
    return pipe(generator=generator, **options).images[0]


class TestGenerations:
    def test_equal_to_diffusers(self, client: openai.OpenAI, pipe: Any) -> None:
        images = drawn(client, n=2)
        assert [picture.size for picture in images] == [(32, 32)] * 2
        assert all(same(picture, direct(pipe, SEED + at)) for at, picture in enumerate(images))

    def test_the_answer(self, account: httpx.Client) -> None:
        body = {"model": "draw", "prompt": PROMPT, **extra(), "size": [48, 32]}
        answer = account.post(GENERATIONS, json=body).raise_for_status().json()
        assert set(answer) == {"model", "created", "id", "data", "size", "output_format"}
        assert (answer["model"], answer["size"]) == ("draw", "48x32")
        assert answer["output_format"] == "png"
        assert abs(answer["created"] - time.time()) < 60
        assert [set(entry) for entry in answer["data"]] == [{"url"}]

    def test_links(self, client: openai.OpenAI, server: Server, pipe: Any) -> None:
        answer = client.images.generate(model="draw", prompt=PROMPT, extra_body=extra())
        assert answer.data
        url = str(answer.data[0].url)
        assert url.startswith(f"{server.base_url}/v1/files/file_")
        response = httpx.get(url).raise_for_status()
        assert response.headers["content-type"] == "image/png"
        assert same(Image.open(io.BytesIO(response.content)), direct(pipe))
        forged = url[:-1] + ("1" if url.endswith("0") else "0")
        assert httpx.get(forged).status_code == 401

    def test_options(self, client: openai.OpenAI, pipe: Any) -> None:
        fields = {"negative_prompt": "blue", "guidance_scale": 3.0}
        [picture] = drawn(client, size="48x16", extra_body=extra(**fields))
        assert same(picture, direct(pipe, width=48, height=16, **fields))
        [plain] = drawn(client, size="48x16", extra_body=extra(guidance_scale=3.0))
        assert not same(picture, plain)

    def test_jpeg_of_low_quality_is_small(self, client: openai.OpenAI) -> None:
        sizes: list[int] = []
        for quality in (5, 100):
            answer = client.images.generate(
                model="draw",
                prompt=PROMPT,
                output_format="jpeg",
                output_compression=quality,
                response_format="b64_json",
                extra_body=extra(),
            )
            assert answer.data
            assert opened(answer)[0].format == "JPEG"
            sizes.append(len(answer.data[0].b64_json or ""))
        assert sizes[0] < sizes[1] / 2

    def test_without_a_seed_images_differ(self, client: openai.OpenAI) -> None:
        options: Any = {"extra_body": {"num_inference_steps": STEPS}}
        first, second, third = [*drawn(client, n=2, **options), *drawn(client, **options)]
        assert not same(first, second)
        assert not same(first, third)

    def test_a_seed_repeats_beside_other_work(self, client: openai.OpenAI, pipe: Any) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(6) as pool:
            other_calls = [
                pool.submit(drawn, client, extra_body={"num_inference_steps": 6}, n=2)
                for _ in range(5)
            ]
            seeded = [pool.submit(drawn, client).result()[0] for _ in range(3)]
            assert all(len(other.result()) == 2 for other in other_calls)
        assert all(same(picture, direct(pipe)) for picture in seeded)

    def test_unconditional(self, client: openai.OpenAI, folders: dict[str, Path]) -> None:
        pipe = diffusers.DDPMPipeline.from_pretrained(folders["dream"])
        pipe.set_progress_bar_config(disable=True)
        body = {"model": "dream", **extra(), "response_format": "b64_json"}
        answer = client.post("/images/generations", body=body, cast_to=openai.types.ImagesResponse)
        expected = pipe(
            num_inference_steps=STEPS, generator=torch.Generator("cpu").manual_seed(SEED)
        )
        assert same(opened(answer)[0], expected.images[0])


class TestEdits:
    def test_image_to_image(self, client: openai.OpenAI, pipe: Any) -> None:
        answer = client.images.edit(
            model="draw",
            image=("picture.png", png(PICTURE), "image/png"),
            prompt=PROMPT,
            response_format="b64_json",
            extra_body=extra(strength=0.6),
        )
        other = diffusers.AutoPipelineForImage2Image.from_pipe(pipe)
        other.set_progress_bar_config(disable=True)
        assert same(opened(answer)[0], direct(other, image=PICTURE, strength=0.6))

    def test_what_the_mask_leaves_is_kept(self, client: openai.OpenAI) -> None:
        mask = Image.new("RGBA", (32, 32), "black")
        mask.paste((0, 0, 0, 0), (0, 0, 16, 32))
        answer = client.images.edit(
            model="draw",
            image=[png(PICTURE)],
            mask=png(mask),
            prompt=PROMPT,
            n=2,
            response_format="b64_json",
            extra_body=extra(),
        )
        for picture in opened(answer):
            pixels, before = numpy.asarray(picture), numpy.asarray(PICTURE)
            assert numpy.array_equal(pixels[:, 16:], before[:, 16:])
            assert not numpy.array_equal(pixels[:, :16], before[:, :16])

    def test_json(self, account: httpx.Client, client: openai.OpenAI) -> None:
        uri = f"data:image/png;base64,{base64.b64encode(png(PICTURE)).decode()}"
        options = {**extra(strength=0.6), "response_format": "b64_json", "size": "48x48"}
        body = {"model": "draw", "prompt": PROMPT, "image": uri, **options}
        answer = account.post(EDITS, json=body).raise_for_status().json()
        form = {key: str(value) for key, value in body.items() if key != "image"}
        files = {"image[]": ("picture.webp", png(PICTURE), "image/webp")}
        again = account.post(EDITS, data=form, files=files).raise_for_status().json()
        assert answer["size"] == "48x48"
        assert answer["data"] == again["data"]


class TestInferenceClient:
    """The client of huggingface_hub, which decodes the image itself."""

    def test_text_to_image(self, account: httpx.Client, pipe: Any) -> None:
        hub = inference_client(account, "draw", GENERATIONS)
        options: Any = {"num_inference_steps": STEPS, "seed": SEED}
        plain = hub.text_to_image(PROMPT, **options)
        assert (plain.format, same(plain, direct(pipe))) == ("PNG", True)
        fields: Any = {"negative_prompt": "blue", "guidance_scale": 3.0, "width": 48, "height": 16}
        assert same(hub.text_to_image(PROMPT, **options, **fields), direct(pipe, **fields))
        webp = hub.text_to_image(PROMPT, **options, extra_body={"output_format": "webp"})
        assert (webp.format, webp.size) == ("WEBP", (32, 32))

    def test_image_to_image(self, account: httpx.Client, client: openai.OpenAI) -> None:
        hub = inference_client(account, "draw", EDITS)
        picture = hub.image_to_image(
            png(PICTURE), prompt=PROMPT, num_inference_steps=STEPS, seed=SEED, strength=0.5
        )
        answer = client.images.edit(
            model="draw",
            image=png(PICTURE),
            prompt=PROMPT,
            response_format="b64_json",
            extra_body=extra(strength=0.5),
        )
        assert same(picture, opened(answer)[0])

    def test_another_answer(self, account: httpx.Client, pipe: Any) -> None:
        body = {"model": "draw", "inputs": PROMPT, "parameters": extra(n=2)}
        answer = account.post(GENERATIONS, json={**body, "response_format": "b64_json"})
        files = [base64.b64decode(entry["b64_json"]) for entry in answer.json()["data"]]
        for at, file in enumerate(files):
            assert same(Image.open(io.BytesIO(file)), direct(pipe, SEED + at))

    @pytest.mark.parametrize(
        ("parameters", "param", "message"),
        [
            ({"scheduler": "DDIMScheduler"}, "scheduler", "not a parameter of this endpoint"),
            ({"width": 48}, "height", "both sides"),
            ({"width": 48, "height": 4}, "height", "from 8 to 2048"),
            ({"width": 48, "height": 16, "size": "48x16"}, "size", "given twice"),
            ({"target_size": 7}, "target_size", "'width' and 'height'"),
            ({"n": 2}, "n", "response_format"),
            ({"prompt": "x"}, "prompt", "given twice"),
            ({"style": "vivid"}, "style", "in the prompt"),
            ({"seed": True}, "seed", "a number"),
            ([1], "parameters", "an object"),
        ],
        ids=str,
    )
    def test_refused(
        self, account: httpx.Client, parameters: Any, param: str, message: str
    ) -> None:
        body = {"model": "draw", "inputs": PROMPT, "parameters": parameters}
        answer = account.post(GENERATIONS, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert message in answer.json()["error"]["message"]


class TestStream:
    def test_partial_images(self, client: openai.OpenAI, pipe: Any) -> None:
        stream = client.images.generate(
            model="draw", prompt=PROMPT, stream=True, partial_images=2, extra_body=extra()
        )
        events: list[Any] = list(stream)
        assert [event.type for event in events] == [
            "image_generation.partial_image",
            "image_generation.partial_image",
            "image_generation.completed",
        ]
        assert [event.partial_image_index for event in events[:2]] == [0, 1]
        pictures = [
            Image.open(io.BytesIO(base64.b64decode(picture.b64_json))) for picture in events
        ]
        assert same(pictures[2], direct(pipe))
        assert {picture.size for picture in pictures} == {(32, 32)}
        assert not same(pictures[0], pictures[2])
        assert {event.size for event in events} == {"32x32"}
        assert events[2].usage.input_tokens == len(pipe.tokenizer(PROMPT).input_ids)

    def test_edit(self, client: openai.OpenAI) -> None:
        events: list[Any] = list(
            client.images.edit(
                model="draw", image=png(PICTURE), prompt=PROMPT, stream=True, extra_body=extra()
            )
        )
        assert [event.type for event in events] == ["image_edit.completed"]

    def test_refused_before_it_begins(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="The nearest are 32x32"):
            client.images.generate(model="draw", prompt=PROMPT, size="33x32", stream=True)


class TestCancelling:
    @pytest.mark.one_machine
    def test_work_ends_with_its_client(self, account: httpx.Client, client: openai.OpenAI) -> None:
        drawn(client)
        body = {"model": "draw", "prompt": PROMPT, "n": 10, "seed": 1, "num_inference_steps": 900}
        with pytest.raises(httpx.ReadTimeout):
            account.post(GENERATIONS, json=body, timeout=0.5)
        started = time.monotonic()
        drawn(client)
        # All nine thousand steps would take a minute.
        assert time.monotonic() - started < 30
        [identifier] = [
            row["id"]
            for row in account.get("/v1/deployments").json()["data"]
            if row["model"] == "draw"
        ]

        def rests() -> bool:
            workers = deployment(account, identifier)["workers"]
            return all(worker["outstanding"] == 0 for worker in workers)

        # The last answer may be sent before the counter is decreased.
        assert eventually(rests)


TRUNCATED = png(PICTURE)[:200]
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no prompt": ({"prompt": None}, "prompt", "must not be empty"),
    "blank prompt": ({"prompt": "  "}, "prompt", "must not be empty"),
    "long prompt": ({"prompt": "red " * 60}, "prompt", "reads at most 77"),
    "n": ({"n": 0}, "n", ""),
    "many": ({"n": 11}, "n", ""),
    "steps": ({"num_inference_steps": 0}, "num_inference_steps", ""),
    "many steps": ({"num_inference_steps": 1001}, "num_inference_steps", ""),
    "more steps than noise": (
        {"num_inference_steps": 1000},
        "num_inference_steps",
        "at most 999 steps",
    ),
    "guidance": ({"guidance_scale": 101}, "guidance_scale", ""),
    "seed": ({"seed": 2**63}, "seed", ""),
    "negative seed": ({"seed": -1}, "seed", ""),
    "odd size": ({"size": "100x100"}, "size", "The nearest are 96x96 or 104x104"),
    "large": ({"size": "4096x64"}, "size", "from 8 to 2048 pixels"),
    "three sides": ({"size": [64, 64, 64]}, "size", "from 8 to 2048 pixels"),
    "words": ({"size": "large"}, "size", "from 8 to 2048 pixels"),
    "format": ({"output_format": "gif"}, "output_format", ""),
    "compression": ({"output_compression": 50}, "output_compression", "needs 'output_format'"),
    "transparent": ({"background": "transparent"}, "background", ""),
    "quality": ({"quality": "hd"}, "quality", ""),
    "style": ({"style": "vivid"}, "style", "is not supported"),
    "stream of two": ({"stream": True, "n": 2}, "n", "must be 1"),
    "stream of links": (
        {"stream": True, "response_format": "url"},
        "response_format",
        "must be 'b64_json'",
    ),
    "partial": ({"partial_images": 1}, "partial_images", "needs 'stream'"),
    "many partial": ({"stream": True, "partial_images": 4}, "partial_images", ""),
    "unguided": ({"negative_prompt": "blue", "guidance_scale": 0.5}, "negative_prompt", "guided"),
}


class TestRefusals:
    @pytest.mark.parametrize("case", REFUSED)
    def test_generations(self, account: httpx.Client, case: str) -> None:
        fields, param, message = REFUSED[case]
        body = {"model": "draw", "prompt": PROMPT, **fields}
        self.refused(account.post(GENERATIONS, json=body), param, message)

    @pytest.mark.parametrize(
        ("files", "data", "param", "message"),
        [
            ([("mask", png(PICTURE))], {}, "image", ""),
            ([("image", b"not an image")], {}, "image", "is not one of PNG"),
            ([("image", TRUNCATED)], {}, "image", "could not be decoded"),
            ([("image", png(PICTURE))] * 2, {}, "image", "must be one image, not 2"),
            (
                [("image", png(PICTURE)), ("mask", png(image(1, (32, 16))))],
                {},
                "mask",
                "has 32 by 16 pixels, but the image has 32 by 32",
            ),
            (
                [("image", png(PICTURE)), ("mask", png(Image.new("L", (32, 32))))],
                {},
                "mask",
                "selects no pixels",
            ),
            ([("image", png(PICTURE))], {"strength": "0"}, "strength", ""),
            ([("image", png(PICTURE))], {"strength": "1.1"}, "strength", ""),
            (
                [("image", png(PICTURE))],
                {"strength": "0.1", "num_inference_steps": "3"},
                "strength",
                "less than one step",
            ),
            ([("image", png(PICTURE)), ("markup", b"x")], {}, "markup", ""),
            ([("image", png(PICTURE))], {"input_fidelity": "high"}, "input_fidelity", ""),
        ],
        ids=str,
    )
    def test_edits(
        self, account: httpx.Client, files: Any, data: Any, param: str, message: str
    ) -> None:
        sent = [(name, (f"{name}.png", content, "image/png")) for name, content in files]
        form = {"model": "draw", "prompt": PROMPT, **data}
        answer = account.post(EDITS, data=form, files=sent)
        self.refused(answer, param, message)

    def refused(self, answer: httpx.Response, param: str, message: str) -> None:
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert message in error["message"]

    def test_unconditional_models_take_no_prompt(self, account: httpx.Client) -> None:
        answer = account.post(GENERATIONS, json={"model": "dream", "prompt": PROMPT})
        self.refused(answer, "prompt", "from noise only")

    def test_other_pipelines(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="Endpoint not supported"):
            client.images.edit(model="dream", image=png(PICTURE), prompt=PROMPT)


class TestDeployments:
    def test_engines(self, account: httpx.Client, folders: dict[str, Path], tmp_path: Path) -> None:
        artifact = push(account, folders["draw"])
        for engine in ("torch", "openvino", "vllm"):
            body = {"model": "other", "artifact_id": artifact["id"], "engine": engine}
            answer = account.post("/v1/deployments", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "engine"
        bert = push(account, tiny_bert(tmp_path))
        body = {"model": "other", "artifact_id": bert["id"], "engine": "diffusers"}
        answer = account.post("/v1/deployments", json=body)
        assert answer.status_code == 400
        assert "runs on openvino and torch" in answer.json()["error"]["message"]

    def test_the_library_is_imported_ahead(self, server: Server, account: httpx.Client) -> None:
        """The engine host imports diffusers for its forks while it still has one thread."""
        log = server.log.read_text()
        assert "engine host has threads" not in log
        for row in account.get("/v1/deployments").json()["data"]:
            assert {worker["engine"] for worker in row["workers"]} <= {"diffusers"}
