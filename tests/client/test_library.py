"""The typed client against a real server, synchronous and asynchronous."""

import asyncio
import time
from pathlib import Path

import pytest

from stoker.client import (
    ApiError,
    AsyncStoker,
    PushState,
    Stoker,
    UnreachableError,
    WaitTimeoutError,
    WrongUseError,
)
from stoker.client.aio import api as aio_api
from stoker.client.sync import api as sync_api
from tests.agents.support import FRANCE, PARIS
from tests.client.conftest import BAD, GOOD, MEDIA, MODELS, Reached, deploy, new_key
from tests.client.editing_proxy import EditingProxy
from tests.support.server import Server


def asynchronous(reached: Reached, base_url: str | None = None) -> AsyncStoker:
    return AsyncStoker(base_url=base_url or reached.base_url, api_key=reached.key)


class TestPush:
    def test_reports_and_deploys(self, reached: Reached, server: Server) -> None:
        states: list[PushState] = []
        with Stoker(base_url=reached.base_url, api_key=new_key(server)) as stoker:
            artifact = stoker.artifacts.push(
                MODELS / "tiny-sentiment", name="feedback", on_progress=states.append
            )
            assert (artifact.display_name, artifact.status) == ("feedback", "ready")
            assert artifact.pipeline == "text-classification"
            assert [state.sent_bytes for state in states] == sorted(s.sent_bytes for s in states)
            assert states[-1].sent_bytes == states[-1].total_bytes > 0
            made = stoker.deployments.create(
                model="feedback", artifact_id=artifact.id, readiness="hot"
            )
            ready = stoker.deployments.wait(made.id)
            assert (ready.status, ready.readiness) == ("ready", "hot")
            labels = stoker.tasks.text_classification(BAD, model="feedback")
            assert labels[0]["label"] == "negative"

    def test_resumes(self, reached: Reached, server: Server) -> None:
        first, second = list[PushState](), list[PushState]()

        def stop_midway(state: PushState) -> None:
            first.append(state)
            if state.sent_bytes > state.total_bytes * 0.9:
                raise KeyboardInterrupt

        with Stoker(base_url=reached.base_url, api_key=new_key(server)) as stoker:
            with pytest.raises(KeyboardInterrupt):
                stoker.artifacts.push(MODELS / "tiny-digits", parallel=1, on_progress=stop_midway)
            artifact = stoker.artifacts.push(MODELS / "tiny-digits", on_progress=second.append)
            assert artifact.status == "ready"
            assert [item.id for item in stoker.artifacts.list()] == [artifact.id]
        resumed = next(state for state in second if not state.message)
        assert resumed.sent_bytes > 0, "parts of the first push were kept"

    async def test_cancellation_stops_it(self, reached: Reached, server: Server) -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        states: list[PushState] = []

        def slow(state: PushState) -> None:
            states.append(state)
            loop.call_soon_threadsafe(begun.set)
            time.sleep(0.05)

        async with AsyncStoker(base_url=reached.base_url, api_key=new_key(server)) as stoker:
            work = asyncio.create_task(
                stoker.artifacts.push(MODELS / "tiny-chat", parallel=1, on_progress=slow)
            )
            await asyncio.wait_for(begun.wait(), 60)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            count = len(states)
            await asyncio.sleep(0.3)
            assert len(states) == count
            assert states[-1].sent_bytes < states[-1].total_bytes
            artifact = await stoker.artifacts.push(MODELS / "tiny-chat")
            assert artifact.status == "ready"

    def test_refuses_what_is_no_model(self, reached: Reached, tmp_path: Path) -> None:
        with reached.stoker() as stoker, pytest.raises(Exception, match="No weights found"):
            stoker.artifacts.push(tmp_path)


class TestTasks:
    def test_one_and_several(self, reached: Reached) -> None:
        with reached.stoker() as stoker:
            one = stoker.tasks.text_classification(GOOD, model="tiny-sentiment", top_k=1)
            many = stoker.tasks.text_classification([GOOD, BAD], model="tiny-sentiment", wait=60)
        assert one[0]["label"] == "positive"
        assert [labels[0]["label"] for labels in many] == ["positive", "negative"]

    @pytest.mark.parametrize("form", ["path", "bytes", "list", "base64"])
    def test_images(self, reached: Reached, form: str) -> None:
        seven = MEDIA / "seven.png"
        with reached.stoker() as stoker:
            if form == "list":
                (labels,) = stoker.tasks.image_classification([seven], model="tiny-digits", top_k=2)
            else:
                import base64

                given = {
                    "path": seven,
                    "bytes": seven.read_bytes(),
                    "base64": base64.b64encode(seven.read_bytes()).decode(),
                }[form]
                labels = stoker.tasks.image_classification(given, model="tiny-digits", top_k=2)
        assert (labels[0]["label"], len(labels)) == ("7", 2)

    async def test_at_the_same_time(self, reached: Reached) -> None:
        async with asynchronous(reached) as stoker:
            tasks = stoker.tasks
            texts = [GOOD, BAD] * 8
            results = await asyncio.gather(
                *(tasks.text_classification(text, model="tiny-sentiment") for text in texts),
            )
            digit = await tasks.image_classification(MEDIA / "seven.png", model="tiny-digits")
        assert [labels[0]["label"] for labels in results] == ["positive", "negative"] * 8
        assert digit[0]["label"] == "7"

    def test_error_of_the_server(self, reached: Reached) -> None:
        with reached.stoker() as stoker, pytest.raises(ApiError) as caught:
            stoker.tasks.text_classification(GOOD, model="unknown")
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")
        assert "code model_not_found" in str(caught.value)


class TestLists:
    def test_all_pages(self, reached: Reached, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sync_api, "PAGE_LIMIT", 2)
        with reached.stoker() as stoker:
            made = {stoker.artifacts.create(display_name=f"listed-{n}").id for n in range(5)}
            listed = [artifact.id for artifact in stoker.artifacts.list()]
            assert made <= set(listed)
            assert len(listed) == len(set(listed))
            assert len([*stoker.artifacts.list(limit=3)]) == 3
            oldest = next(stoker.artifacts.list(order="asc"))
            assert oldest.id == listed[-1]
            for artifact_id in made:
                assert stoker.artifacts.delete(artifact_id).id == artifact_id

    async def test_asynchronous_pages(
        self, reached: Reached, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(aio_api, "PAGE_LIMIT", 1)
        async with asynchronous(reached) as stoker:
            models = {deployment.model async for deployment in stoker.deployments.list()}
            found = [d.model async for d in stoker.deployments.list(search="sentiment")]
        assert models == {"tiny-sentiment", "tiny-digits", "tiny-chat"}
        assert found == ["tiny-sentiment"]


class TestWaits:
    def test_status_that_does_not_come(self, reached: Reached) -> None:
        with reached.stoker() as stoker:
            (deployment,) = stoker.deployments.list(search="sentiment")
            with pytest.raises(WaitTimeoutError, match="did not become stopped within 0 seconds"):
                stoker.deployments.wait(deployment.id, until="stopped", timeout_s=0)
            with pytest.raises(TimeoutError):
                stoker.deployments.wait(deployment.id, until="stopped", timeout_s=0)

    async def test_cold_deployment(self, reached: Reached, server: Server) -> None:
        async with AsyncStoker(base_url=reached.base_url, api_key=new_key(server)) as stoker:
            artifact = await stoker.artifacts.push(MODELS / "tiny-sentiment")
            cold = await stoker.deployments.create(model="cold", artifact_id=artifact.id)
            with pytest.raises(WrongUseError, match="cold: its first call loads it"):
                await stoker.deployments.wait(cold.id)
            await stoker.deployments.stop(cold.id)
            stopped = await stoker.deployments.wait(cold.id, until="stopped")
            assert stopped.desired == "stopped"
            with pytest.raises(WrongUseError, match="is stopped"):
                await stoker.deployments.wait(cold.id)

    async def test_call_of_a_cold_model(self, reached: Reached, server: Server) -> None:
        """Each answer is a 503 until the model is loaded. The client waits as they say."""
        async with AsyncStoker(base_url=reached.base_url, api_key=new_key(server)) as stoker:
            artifact = await stoker.artifacts.push(MODELS / "tiny-sentiment")
            await stoker.deployments.create(model="cold", artifact_id=artifact.id)
            labels = await stoker.tasks.text_classification(BAD, model="cold", wait=0)
        assert labels[0]["label"] == "negative"

    def test_version(self, reached: Reached, server: Server) -> None:
        with Stoker(base_url=reached.base_url, api_key=new_key(server)) as stoker:
            artifact = stoker.artifacts.push(MODELS / "tiny-sentiment")
            made = stoker.deployments.create(
                model="two", artifact_id=artifact.id, readiness="warm", engine="torch"
            )
            stoker.deployments.wait(made.id)
            version = stoker.versions.create(made.id, dtype="bfloat16", note="half the memory")
            live = stoker.versions.wait(made.id, version.id)
            assert (live.status, live.note) == ("live", "half the memory")
            assert stoker.deployments.get(made.id).version_id == version.id
            stoker.deployments.rollback(made.id)
            assert stoker.deployments.get(made.id).version_id != version.id


class TestRuns:
    def test_events(self, reached: Reached) -> None:
        with reached.stoker() as stoker:
            agent = stoker.agents.create(name="guide", model="tiny-chat")
            run = stoker.runs.create(agent.id, input=FRANCE)
            events = [*stoker.runs.events(agent.id, run.id)]
            text = "".join(e.data["text"] for e in events if e.type == "message.delta")
            assert (text, events[-1].type) == (PARIS, "run.completed")
            sequences = [event.sequence for event in events]
            later = [e.sequence for e in stoker.runs.events(agent.id, run.id, after=sequences[1])]
            assert later == sequences[2:]
            assert [*stoker.runs.events(agent.id, run.id, after=sequences[-1])] == []
            assert stoker.runs.get(agent.id, run.id).status == "completed"

    async def test_reconnects(self, reached: Reached, proxy: EditingProxy) -> None:
        proxy.events = 2
        async with asynchronous(reached, proxy.address) as stoker:
            agent = await stoker.agents.create(name="cut", model="tiny-chat")
            run = await stoker.runs.create(agent.id, input=FRANCE)
            events = [event async for event in stoker.runs.events(agent.id, run.id)]
        streams = [seen for seen in proxy.seen if seen.path.endswith("/events")]
        assert len(streams) == -(-len(events) // 2) > 1
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert "".join(e.data["text"] for e in events if e.type == "message.delta") == PARIS

    def test_all_events_of_an_ended_run(self, reached: Reached, proxy: EditingProxy) -> None:
        """The run has ended at the first cut, but most of its events follow."""
        proxy.events = 3
        with reached.stoker(proxy.address) as stoker:
            agent = stoker.agents.create(name="ended", model="tiny-chat")
            run = stoker.runs.create(agent.id, input=FRANCE)
            with reached.stoker() as direct:
                sequences = [e.sequence for e in direct.runs.events(agent.id, run.id)]
            followed = [e.sequence for e in stoker.runs.events(agent.id, run.id)]
        assert followed == sequences == [*range(1, len(sequences) + 1)]

    def test_changes(self, reached: Reached) -> None:
        with reached.stoker() as stoker:
            names = set[str]()
            for name, data in stoker.events.follow():
                names.add(name)
                assert data
                break
        assert names

    async def test_changes_asynchronously(self, reached: Reached) -> None:
        async with asynchronous(reached) as stoker:
            follow = stoker.events.follow()
            name, data = await anext(follow)
        assert name and data


@pytest.fixture(scope="module")
def drawing(reached: Reached) -> str:
    """Deploys a model of images and returns the id of a file that it made."""
    with reached.stoker() as stoker:
        deploy(stoker, "tiny-draw")
        stoker.openai().images.generate(
            model="tiny-draw",
            prompt="a red circle",
            response_format="url",
        )
        (file,) = stoker.files.list(limit=1)
        return file.id


class TestFiles:
    def test_download(self, reached: Reached, drawing: str, tmp_path: Path) -> None:
        with reached.stoker() as stoker:
            file = stoker.files.get(drawing)
            target = stoker.files.download(drawing, tmp_path / "drawing.png")
        assert target.read_bytes().startswith(b"\x89PNG")
        assert target.stat().st_size == file.bytes
        assert [path.name for path in tmp_path.iterdir()] == ["drawing.png"]

    async def test_asynchronous_download(
        self, reached: Reached, drawing: str, tmp_path: Path
    ) -> None:
        async with asynchronous(reached) as stoker:
            target = await stoker.files.download(drawing, tmp_path / "drawing.png")
        assert target.read_bytes().startswith(b"\x89PNG")

    async def test_failed_download_leaves_nothing(self, reached: Reached, tmp_path: Path) -> None:
        async with asynchronous(reached) as stoker:
            with pytest.raises(ApiError):
                await stoker.files.download("file_unknown", tmp_path / "x")
        assert [*tmp_path.iterdir()] == []


class TestVideos:
    async def test_wait_and_download(self, reached: Reached, tmp_path: Path) -> None:
        with reached.stoker() as blocking:
            deploy(blocking, "random-video-maker")
        async with asynchronous(reached) as stoker:
            made = await stoker.videos.create(
                model="random-video-maker",
                prompt="a red circle moves",
                num_inference_steps=2,
                size="64x32",
                seconds=0.4,
            )
            with pytest.raises(WaitTimeoutError):
                await stoker.videos.wait(made.id, timeout_s=0)
            video = await stoker.videos.wait(made.id)
            assert (video.status, video.progress) == ("completed", 100)
            film = await stoker.videos.download(made.id, tmp_path / "film.mp4")
            small = await stoker.videos.download(
                made.id, tmp_path / "film.webp", variant="thumbnail"
            )
        with reached.stoker() as blocking:
            assert blocking.videos.wait(made.id).id == made.id
            again = blocking.videos.download(made.id, tmp_path / "again.mp4")
        assert film.read_bytes()[4:8] == b"ftyp"
        assert again.read_bytes() == film.read_bytes()
        assert small.read_bytes()[8:12] == b"WEBP"


class TestSettings:
    def test_environment(
        self, reached: Reached, monkeypatch: pytest.MonkeyPatch, no_settings: None
    ) -> None:
        monkeypatch.setenv("STOKER_BASE_URL", reached.base_url)
        monkeypatch.setenv("STOKER_API_KEY", reached.key)
        with Stoker() as stoker:
            assert {model.id for model in stoker.models.list()} >= {"tiny-sentiment"}

    @pytest.mark.parametrize("end", ["/v1", "/v1/", "/"])
    def test_an_address_for_clients_of_openai(self, reached: Reached, end: str) -> None:
        with Stoker(base_url=f"{reached.base_url}{end}", api_key=reached.key) as stoker:
            assert stoker.base_url == reached.base_url
            assert {model.id for model in stoker.models.list()} >= {"tiny-sentiment"}
            assert str(stoker.openai().base_url) == f"{reached.base_url}/v1/"

    def test_no_key(self, no_settings: None) -> None:
        with pytest.raises(WrongUseError, match="Pass api_key or set STOKER_API_KEY"):
            Stoker()

    def test_no_server(self) -> None:
        with (
            Stoker(base_url="http://127.0.0.1:9", api_key="sk", max_retries=0) as stoker,
            pytest.raises(UnreachableError, match="Cannot reach a server at"),
        ):
            stoker.quotas.get()

    def test_not_an_address(self) -> None:
        with pytest.raises(WrongUseError, match="base_url or STOKER_BASE_URL"):
            Stoker(base_url="somewhere", api_key="sk")

    def test_operator_acts_for_an_account(self, reached: Reached, server: Server) -> None:
        with Stoker(base_url=reached.base_url, api_key=server.operator_key) as operator:
            account = operator.accounts.create(name="acted-for")
            assert operator.accounts.get(account.id).name == "acted-for"
        with Stoker(
            base_url=reached.base_url, api_key=server.operator_key, account=account.id
        ) as acting:
            artifact = acting.artifacts.create(display_name="for another")
            assert [item.id for item in acting.artifacts.list()] == [artifact.id]
