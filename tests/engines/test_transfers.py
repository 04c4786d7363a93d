import pytest
import torch

from stoker.models.engines.transfers import HostStream, OutputBlock, stream_of

OUTPUTS = {
    "logits": torch.randn(3, 5, 7, dtype=torch.bfloat16),
    "turned": torch.randn(4, 6).t(),
    "tokens": torch.arange(12).view(3, 4),
    "mask": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "nothing": None,
    "words": ("a", "b"),
}


class TestOutputBlock:
    def test_outputs_are_equal(self) -> None:
        outputs = OutputBlock(OUTPUTS, is_pinned=False).outputs
        assert list(outputs) == list(OUTPUTS)
        for name, value in OUTPUTS.items():
            if not isinstance(value, torch.Tensor):
                assert outputs[name] is value
                continue
            expected = value.float() if value.is_floating_point() else value
            assert outputs[name].dtype == expected.dtype
            assert torch.equal(outputs[name], expected)

    def test_outputs_share_one_block(self) -> None:
        outputs = OutputBlock(OUTPUTS, is_pinned=False).outputs
        blocks = {
            value.untyped_storage().data_ptr()
            for value in outputs.values()
            if isinstance(value, torch.Tensor) and value.numel()
        }
        assert len(blocks) == 1

    def test_later_changes_of_the_source_do_not_show(self) -> None:
        source = torch.ones(3)
        outputs = OutputBlock({"logits": source}, is_pinned=False).outputs
        source.zero_()
        assert outputs["logits"].tolist() == [1, 1, 1]

    def test_nothing_to_copy(self) -> None:
        assert OutputBlock({"words": "a"}, is_pinned=False).outputs == {"words": "a"}


class TestHostStream:
    def test_a_pass_has_ended_when_it_is_launched(self) -> None:
        pending = HostStream().launch(lambda: OUTPUTS)
        assert pending.is_ready
        assert pending.wait()["logits"].dtype == torch.float32
        assert pending.wait()["tokens"] is OUTPUTS["tokens"]

    def test_errors_are_raised_by_the_launch(self) -> None:
        with pytest.raises(ZeroDivisionError):
            HostStream().launch(lambda: {"a": 1 / 0})

    def test_a_cpu_is_synchronous(self) -> None:
        assert not stream_of(torch.device("cpu")).is_asynchronous
