import json
import os
from pathlib import Path

import pytest

from stoker.client.errors import StokerError
from stoker.client.selection import Selection, default_name, select


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def paths(selection: Selection) -> set[str]:
    return {file.path for file in selection.files}


def left_out(selection: Selection) -> dict[str, str]:
    return {item.path: item.reason for item in selection.left_out}


def test_selects_what_a_model_needs(folder: Path) -> None:
    wanted = ["vocab.txt", "merges.txt", "spiece.model", "source.spm", "qwen.tiktoken"]
    wanted += [
        "artifact.metadata",
        "chat_template.jinja",
        "README.md",
        "LICENSE",
        "LICENSE.md",
        "tokenizer.json",
    ]
    for name in wanted:
        (folder / name).write_text("x")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")

    selection = select(folder)

    expected = {*wanted, "config.json", "model.safetensors", "1_Pooling/config.json"}
    assert paths(selection) == expected
    assert not selection.left_out


def test_smallest_first(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"x" * 100)
    assert [f.path for f in select(folder).files][-1] == "tokenizer.json"
    assert select(folder).size == 2 + 7 + 100


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "pickle"),
        ("training_args.pt", "pickle"),
        ("model.PTH", "pickle"),
        ("last.ckpt", "pickle"),
        ("tf_model.h5", "another framework"),
        ("flax_model.msgpack", "another framework"),
        ("model.onnx", "another framework"),
        ("cat.png", "image"),
        ("modeling_custom.py", "code"),
        ("events.out.tfevents.1", "not needed"),
        ("pytorch_model.bin.index.json", "not needed"),
        (".gitattributes", "not needed"),
        (".git/config.json", "hidden"),
        (".cache/huggingface/x.json", "hidden"),
        ("checkpoint-500/model.safetensors", "checkpoint"),
    ],
)
def test_leaves_out_with_a_reason(folder: Path, name: str, reason: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")

    selection = select(folder)

    assert paths(selection) == {"config.json", "model.safetensors"}
    [(path, stated_reason)] = left_out(selection).items()
    assert name.startswith(path)
    assert reason in stated_reason


def test_a_file_that_cannot_be_sent_makes_no_other_superfluous(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    (tmp_path / "elsewhere").write_bytes(b"weights")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert paths(select(folder)) == {"config.json", "model.fp16.safetensors"}


class TestLinks:
    def test_follows_those_inside(self, folder: Path) -> None:
        (folder / "tokenizer.json").symlink_to(folder / "config.json")
        assert "tokenizer.json" in paths(select(folder))

    def test_leaves_out_those_that_lead_out(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "secret.json").write_text("{}")
        (folder / "tokenizer.json").symlink_to(tmp_path / "secret.json")
        selection = select(folder)
        assert "tokenizer.json" not in paths(selection)
        assert "outside the folder" in left_out(selection)["tokenizer.json"]

    def test_does_not_go_into_linked_folders(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "config.json").write_text("{}")
        (folder / "linked").symlink_to(tmp_path / "other")
        selection = select(folder)
        assert paths(selection) == {"config.json", "model.safetensors"}
        assert left_out(selection) == {"linked": "a link to a folder"}

    def test_leaves_out_circles_and_dead_ends(self, folder: Path) -> None:
        (folder / "a.json").symlink_to(folder / "b.json")
        (folder / "b.json").symlink_to(folder / "a.json")
        (folder / "c.json").symlink_to(folder / "gone.json")
        assert set(left_out(select(folder))) == {"a.json", "b.json", "c.json"}

    def test_leaves_out_pipes(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe.json")
        assert left_out(select(folder)) == {"pipe.json": "not a regular file"}

    def test_follows_those_of_a_hugging_face_cache(self, tmp_path: Path) -> None:
        repository = tmp_path / "models--team--sentiment"
        snapshot = repository / "snapshots" / "0123abcd"
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir()
        for name in ("config.json", "model.safetensors"):
            (repository / "blobs" / f"sha-{name}").write_text("{}")
            (snapshot / name).symlink_to(f"../../blobs/sha-{name}")
        assert paths(select(snapshot)) == {"config.json", "model.safetensors"}
        assert default_name(snapshot) == "team/sentiment"


class TestRefuses:
    def test_pickled_weights_alone(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with pytest.raises(StokerError, match=r"pickled weights \(pytorch_model.bin\)") as caught:
            select(folder)
        assert "save_pretrained" in (caught.value.hint or "")

    def test_no_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with pytest.raises(StokerError, match="No weights"):
            select(folder)

    def test_missing_shards(self, folder: Path) -> None:
        shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        (folder / "model.safetensors").rename(folder / shards[1])
        index = {"weight_map": {"a": shards[0], "b": shards[1]}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(StokerError, match=r"missing: model-00001-of-00002\.safetensors"):
            select(folder)

    def test_git_lfs_pointers(self, folder: Path) -> None:
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        (folder / "model.safetensors").write_text(pointer)
        with pytest.raises(StokerError, match="Git LFS pointer"):
            select(folder)

    def test_no_config(self, folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "config.json").rename(folder / "inner" / "config.json")
        with pytest.raises(StokerError, match=r"No config\.json") as caught:
            select(folder)
        assert str(folder / "inner") in (caught.value.hint or "")

    def test_not_the_lack_of_a_config_beside_gguf(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        assert paths(select(tmp_path)) == {"model.gguf"}

    def test_a_file_that_is_no_model(self, folder: Path) -> None:
        with pytest.raises(StokerError, match="neither a folder nor a GGUF file"):
            select(folder / "model.safetensors")


class TestPipelines:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("model_index.json", "unet/config.json", "unet/model.safetensors"):
            path = tmp_path / "pipeline" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        return tmp_path / "pipeline"

    def test_selects_folders(self, folder: Path) -> None:
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "merges.txt").write_text("x")
        selection = select(folder)
        assert "unet/model.safetensors" in paths(selection)
        assert "tokenizer/merges.txt" in paths(selection)
        assert not selection.left_out

    def test_leaves_out_the_same_weights_again(self, folder: Path) -> None:
        (folder / "v1-5-pruned.safetensors").write_bytes(b"all in one")
        (folder / "unet" / "model.fp16.safetensors").write_bytes(b"half")
        assert left_out(select(folder)) == {
            "v1-5-pruned.safetensors": "not one of the pipeline's folders",
            "unet/model.fp16.safetensors": "a variant of weights that are also present in full",
        }

    def test_sends_a_variant_that_is_all_there_is(self, folder: Path) -> None:
        """A variant is sent if it is the only one. The server reports how to proceed."""
        (folder / "unet" / "model.safetensors").rename(folder / "unet" / "model.fp16.safetensors")
        assert "unet/model.fp16.safetensors" in paths(select(folder))


class TestOneFile:
    def test_gguf_alone(self, tmp_path: Path) -> None:
        (tmp_path / "tiny.Q8_0.gguf").write_bytes(b"GGUF")
        (tmp_path / "other.gguf").write_bytes(b"GGUF")
        assert paths(select(tmp_path / "tiny.Q8_0.gguf")) == {"tiny.Q8_0.gguf"}
        assert default_name(tmp_path / "tiny.Q8_0.gguf") == "tiny.Q8_0"

    def test_a_git_lfs_pointer(self, tmp_path: Path) -> None:
        (tmp_path / "x.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(StokerError, match="Git LFS pointer"):
            select(tmp_path / "x.gguf")
