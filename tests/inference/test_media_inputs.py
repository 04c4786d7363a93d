"""Media in every form that clients may send over HTTP, and the errors for invalid ones."""

import base64
import http.server
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy
import psutil
import pytest
import transformers
from PIL import Image

from tests.support.compare import equal
from tests.support.deploying import deploy
from tests.support.media import image, png
from tests.support.models import tiny_bert, tiny_vit
from tests.support.server import Server, running

PATH = "/v1/classifications/image"
PICTURE, OTHER = image(0), image(1, (40, 90))
FILE = png(PICTURE)


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


class Files(http.server.BaseHTTPRequestHandler):
    """Serves pictures, a redirect and errors, depending on the path."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("location", "http://192.0.2.1/x.png")
            self.end_headers()
            return
        content = FILE if self.path == "/a.png" else png(OTHER)
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_args: object) -> None: ...


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


@pytest.fixture(scope="module")
def media_server(tmp_path_factory: pytest.TempPathFactory, files: str) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("media")
    (place / "shared").mkdir()
    (place / "shared" / "a.png").write_bytes(FILE)
    with running(
        place / "data",
        STOKER_MEDIA_PRIVATE_HOSTS=f'["{files.removeprefix("http://")}"]',
        STOKER_MEDIA_DIRS=f'["{place / "shared"}"]',
        STOKER_LIST_LIMIT="8",
        STOKER_BODY_LIMIT_MIB="1",
        STOKER_MEDIA_LIMIT_MIB="1",
        STOKER_IMAGE_LIMIT_MPIXELS="0.1",
        STOKER_PREPARATION_PROCESSES="2",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vit(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def client(media_server: Server, folder: Path) -> httpx.Client:
    client = media_server.account()
    media_server.wait_ready()
    deploy(client, folder, "vit")
    return client


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    pipe = transformers.pipeline("image-classification", model=str(folder), device="cpu")
    return pipe(PICTURE), pipe(OTHER)


class TestForms:
    @pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
    def test_json(self, client: httpx.Client, expected: Any, prefix: str) -> None:
        body = {"inputs": prefix + b64(FILE)}
        equal(client.post(PATH, json=body).raise_for_status().json(), expected[0])

    def test_url(self, client: httpx.Client, expected: Any, files: str) -> None:
        body = {"inputs": [f"{files}/a.png", f"{files}/b.png", f"{files}/a.png"], "timeout": 10}
        Files.asked.clear()
        answer = client.post(PATH, json=body).raise_for_status().json()
        equal(answer, [expected[0], expected[1], expected[0]])
        assert sorted(Files.asked) == ["/a.png", "/b.png"], "equal URLs are fetched once"

    def test_path(self, client: httpx.Client, expected: Any, media_server: Server) -> None:
        path = media_server.data_dir.parent / "shared" / "a.png"
        body = {"inputs": str(path)}
        equal(client.post(PATH, json=body).raise_for_status().json(), expected[0])

    def test_form(self, client: httpx.Client, expected: Any) -> None:
        answer = client.post(PATH, files={"inputs": ("a.png", FILE)}, data={"top_k": "1"})
        equal(answer.raise_for_status().json(), expected[0][:1])

    def test_form_without_its_end(self, client: httpx.Client) -> None:
        """A form without its end is rejected. Before, its last field was dropped and the rest was
        accepted as complete.
        """
        form = {"inputs": ("a.png", FILE), "top_k": (None, "1")}
        whole = client.build_request("POST", PATH, files=form)
        body = whole.read()
        # Ends after the value of the last field.
        cut = body[: body.index(b"top_k") + 10]
        headers = {"content-type": whole.headers["content-type"]}
        answer = client.post(PATH, content=cut, headers=headers)
        assert answer.status_code == 400
        assert "last boundary is missing" in answer.json()["error"]["message"]

    @pytest.mark.parametrize("charset", ["undefined", "idna"])
    def test_form_in_no_charset(self, client: httpx.Client, charset: str) -> None:
        """A charset without a text encoding is rejected. Python has such encodings, with errors of
        other types that caused a 500 before.
        """
        whole = client.build_request("POST", PATH, files={"inputs": (None, b"\xff.\xff")})
        kind = f"{whole.headers['content-type']}; charset={charset}"
        answer = client.post(PATH, content=whole.read(), headers={"content-type": kind})
        assert answer.status_code == 400

    @pytest.mark.parametrize("name", ["inputs", "inputs[]"])
    def test_form_of_several(self, client: httpx.Client, expected: Any, name: str) -> None:
        files = [(name, ("a.png", FILE)), (name, ("b.png", png(OTHER)))]
        answer = client.post(PATH, files=files, data={"model": "vit"})
        equal(answer.raise_for_status().json(), list(expected))

    def test_form_with_text(self, client: httpx.Client, expected: Any, files: str) -> None:
        answer = client.post(PATH, files={"inputs": (None, f"{files}/a.png")})
        equal(answer.raise_for_status().json(), expected[0])

    @pytest.mark.parametrize("kind", ["image/png", "image/x-anything", "application/octet-stream"])
    def test_bare_file(self, client: httpx.Client, expected: Any, kind: str) -> None:
        answer = client.post(
            PATH,
            content=FILE,
            headers={"content-type": kind},
            params={"top_k": 2, "function_to_apply": "softmax", "model": "vit"},
        )
        equal(answer.raise_for_status().json(), expected[0][:2])

    def test_without_a_type(self, client: httpx.Client, expected: Any) -> None:
        for content in (FILE, b' {"inputs": "' + b64(FILE).encode() + b'"}'):
            request = client.build_request("POST", PATH, content=content)
            assert "content-type" not in request.headers
            equal(client.send(request).raise_for_status().json(), expected[0])

    def test_of_hugging_face_clients(self, client: httpx.Client, expected: Any) -> None:
        body = {"inputs": b64(FILE), "parameters": {"top_k": 1}}
        equal(client.post(PATH, json=body).raise_for_status().json(), expected[0][:1])


GOOD = b64(FILE)
BAD: dict[str, tuple[Any, str, str]] = {
    "no media": (b64(b"no image at all"), "inputs", "PNG"),
    "cut short": (b64(FILE[: len(FILE) // 2]), "inputs", "could not be decoded"),
    "no base64": ("!", "inputs", "base64"),
    "in a list": ([GOOD, GOOD, b64(b"text")], "inputs[2]", "PNG"),
    "private address": ("http://10.0.0.1/a.png", "inputs", "public"),
    "metadata": ("http://169.254.169.254/latest", "inputs", "public"),
    "this server": ("http://localhost:1/", "inputs", "public"),
    "odd literal": ("http://0x7f.1/", "inputs", "public"),
    "scheme": ("ftp://example.com/a.png", "inputs", "http(s)"),
    "file": ("file:///etc/passwd", "inputs", "STOKER_MEDIA_DIRS"),
    "path": ("/etc/passwd", "inputs", "STOKER_MEDIA_DIRS"),
    "too many pixels": (b64(png(image(0, (400, 400)))), "inputs", "pixels"),
}


@pytest.mark.one_machine
def test_slow_media_are_prepared_in_processes(client: httpx.Client, folder: Path) -> None:
    """The answers are those of the pipeline, also while a process is killed."""
    noise = numpy.random.default_rng(0).integers(0, 256, (8, 300, 330, 3), dtype=numpy.uint8)
    pictures = [Image.fromarray(pixels) for pixels in noise]
    pipe = transformers.pipeline("image-classification", model=str(folder), device="cpu")
    expected = [pipe(picture) for picture in pictures]
    bodies = [{"inputs": b64(png(picture))} for picture in pictures] * 3
    client.post(PATH, json=bodies[0]).raise_for_status()
    (listed,) = client.get("/v1/deployments").raise_for_status().json()["data"]
    (worker,) = listed["workers"]
    replica = psutil.Process(worker["pid"])
    (parent,) = replica.children()
    assert parent.username() == replica.username()
    until = time.monotonic() + 60
    killed: list[psutil.Process] = []
    with ThreadPoolExecutor(len(bodies)) as pool:
        while not killed or not parent.children():
            assert time.monotonic() < until
            answers = pool.map(lambda body: client.post(PATH, json=body), bodies)
            if not killed and (processes := parent.children()):
                processes[0].kill()
                killed = processes[:1]
            for number, answer in enumerate(answers):
                equal(answer.raise_for_status().json(), expected[number % len(expected)])
        bad = pool.submit(client.post, PATH, json={"inputs": b64(png(pictures[0])[:2000])})
        good = [pool.submit(client.post, PATH, json=body) for body in bodies[:4]]
        assert bad.result().json()["error"]["code"] == "invalid_media"
        assert all(answer.result().is_success for answer in good)
    assert replica.is_running()
    assert parent.is_running()


class TestRefusals:
    @pytest.mark.parametrize("case", BAD)
    def test_bad_media(self, client: httpx.Client, case: str) -> None:
        inputs, param, says = BAD[case]
        answer = client.post(PATH, json={"inputs": inputs})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("InvalidMediaError", "invalid_media")
        assert error["param"] == param
        assert says in error["message"]

    @pytest.mark.parametrize("path", ["redirect", "missing"])
    def test_bad_sites(self, client: httpx.Client, files: str, path: str) -> None:
        answer = client.post(PATH, json={"inputs": [GOOD, f"{files}/{path}"]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "inputs[1]"
        assert "192.0.2.1" not in answer.text

    def test_path_outside(self, client: httpx.Client, media_server: Server) -> None:
        path = media_server.data_dir.parent / "shared" / ".." / "data" / "operator-key"
        answer = client.post(PATH, json={"inputs": str(path)})
        assert answer.status_code == 400

    def test_lists(self, client: httpx.Client) -> None:
        for inputs, says in (([], "at least 1"), ([GOOD] * 9, "limit is 8")):
            answer = client.post(PATH, json={"inputs": inputs})
            assert answer.status_code == 400
            assert says in answer.json()["error"]["message"]

    def test_body_over_the_limit(self, client: httpx.Client) -> None:
        for kind in ("image/png", "multipart/form-data; boundary=x", "application/json"):
            content = bytes(1024 * 1024 + 1)
            answer = client.post(PATH, content=content, headers={"content-type": kind})
            assert answer.status_code == 413, kind

    @pytest.mark.parametrize(
        ("kind", "status"),
        [
            ("text/plain", 415),
            ("audio/wav", 415),
            ("image/png", 400),
            ("multipart/form-data", 400),
            ("multipart/form-data; boundary=x", 400),
        ],
    )
    def test_other_bodies(self, client: httpx.Client, kind: str, status: int) -> None:
        answer = client.post(PATH, content=b"", headers={"content-type": kind})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]

    def test_unknown_field_of_a_form(self, client: httpx.Client) -> None:
        answer = client.post(PATH, files={"image": ("a.png", FILE)})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "image"

    def test_file_for_a_text_task(self, media_server: Server, tmp_path: Path) -> None:
        client = media_server.account("texts")
        deploy(client, tiny_bert(tmp_path / "bert"), "bert")
        answer = client.post("/v1/classifications/token", files={"inputs": ("a.txt", b"text")})
        assert answer.status_code == 415

    def test_bad_media_of_others_harm_nobody(self, client: httpx.Client, expected: Any) -> None:
        bodies = [GOOD, b64(b"junk"), b64(FILE[:200])] * 8

        def ask(given: str) -> httpx.Response:
            return client.post(PATH, json={"inputs": given})

        with ThreadPoolExecutor(12) as pool:
            for inputs, answer in zip(bodies, pool.map(ask, bodies), strict=True):
                if inputs == GOOD:
                    equal(answer.raise_for_status().json(), expected[0])
                else:
                    assert answer.status_code == 400
