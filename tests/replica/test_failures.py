"""Failure messages by the failed step and the exception."""

import logging

import pytest

from stoker.models.stages.base import ContextLengthError, InputError
from stoker.replica import failures
from stoker.replica.failures import Step
from stoker.wire.protocol import LoadFailed, RequestFailure


def place(error: InputError | None) -> str:
    return error.field if error else "inputs"


class TestFailure:
    @pytest.mark.parametrize(
        "step", [failures.PREPARE_INPUT, failures.PREPARE_PROMPT, failures.READ_OUTPUT]
    )
    def test_an_input_is_told_what_is_wrong(self, step: Step) -> None:
        error = InputError("It is empty.", field="table", code="invalid_media")
        failure = failures.failure(3, step, error, place)
        assert failure == RequestFailure(3, "invalid_media", "It is empty.", "table")

    def test_a_long_prompt_keeps_its_code(self) -> None:
        error = ContextLengthError(8, "there are 9.", field="prompt")
        failure = failures.failure(3, failures.PREPARE_PROMPT, error, place)
        assert (failure.code, failure.param) == ("context_length_exceeded", "prompt")

    @pytest.mark.parametrize("step", [failures.ENCODE_RESULT, failures.WRITE_ANSWER])
    def test_what_reads_no_input_blames_none(self, step: Step) -> None:
        failure = failures.failure(3, step, InputError("It is empty.", field="table"), place)
        assert failure == RequestFailure(3, "inference_failed", step.message, "inputs")

    def test_the_model_s_failure_is_logged_and_kept_from_the_client(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR):
            failure = failures.failure(3, failures.READ_OUTPUT, RuntimeError("/secret"), place)
        assert failure.code == "inference_failed"
        assert failure.message == "The model's output could not be read."
        assert "an output could not be read" in caplog.text
        assert "/secret" in caplog.text


class TestLoadFailure:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (MemoryError(), LoadFailed("MemoryError.", out_of_memory=True)),
            (
                RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
                LoadFailed(
                    "RuntimeError: DefaultCPUAllocator: can't allocate memory: 9 bytes.",
                    out_of_memory=True,
                ),
            ),
            (
                RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
                LoadFailed(
                    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                    out_of_memory=True,
                ),
            ),
            (ValueError("no such head"), LoadFailed("ValueError: no such head.", lasting=True)),
            (OSError("cannot read /data/model"), LoadFailed("OSError: cannot read …/model.")),
        ],
    )
    def test_says_whether_waiting_helps(self, error: Exception, expected: LoadFailed) -> None:
        assert failures.load_failure(error) == expected

    def test_names_the_end_of_a_path(self) -> None:
        """The message shows the end of a path, which identifies the package or the model's file. It
        hides the server's location.
        """
        error = PermissionError(13, "Permission denied", "/srv/data/site-packages/torch/_C.so")
        reason = failures.load_failure(error).message
        assert reason == "PermissionError: Permission denied …/site-packages/torch/_C.so."

    def test_a_long_one_ends_with_a_word(self) -> None:
        message = failures.load_failure(RuntimeError("word " * 500)).message
        assert len(message) < 650
        assert message.endswith("word …")
