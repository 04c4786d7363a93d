"""Parts are sent in parallel, in any order and repeatedly."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.artifacts.support import MIB, Uploading, data, digest, error, eventually, sent_range

PATH = "model.safetensors"


def _number_range(number: int, total: int) -> dict[str, str]:
    return sent_range((number - 1) * MIB, min(number * MIB, total), total)


class TestOrder:
    @pytest.mark.parametrize("told", [False, True])
    def test_parallel_and_out_of_order(self, upload: Uploading, told: bool) -> None:
        content = data(6 * MIB + 77)

        def send(number: int) -> dict:
            part = content[(number - 1) * MIB : number * MIB]
            headers = _number_range(number, len(content)) if told else {}
            answer = upload.put_part(PATH, number, part, **headers, **digest(part))
            return answer.raise_for_status().json()

        order = [7, 3, 1, 6, 2, 5, 4]
        with ThreadPoolExecutor(4) as pool:
            answers = sorted(pool.map(send, order), key=lambda part: part["number"])
        file = upload.file(PATH)
        assert file["parts"] == answers
        assert (file["size"], file["received"]) == (len(content), len(content))
        assert (file["complete"], file["sha256"]) == (True, None)
        assert upload.stored() == [content]

    def test_answer(self, upload: Uploading) -> None:
        answer = upload.put_part(PATH, 2, b"abc")
        assert answer.status_code == 200
        assert answer.json() == {
            "number": 2,
            "size": 3,
            "sha256": hashlib.sha256(b"abc").hexdigest(),
        }

    def test_received_counts_up_to_the_gap(self, upload: Uploading) -> None:
        for number in (1, 2, 4):
            upload.put_part(PATH, number, data(MIB)).raise_for_status()
        file = upload.file(PATH)
        assert (file["received"], file["complete"], file["size"]) == (2 * MIB, False, None)
        assert upload.offset(PATH) == 2 * MIB
        upload.put_part(PATH, 3, data(MIB)).raise_for_status()
        assert upload.file(PATH)["complete"]


class TestAgain:
    def test_same_bytes(self, upload: Uploading) -> None:
        upload.put(PATH, data(MIB), **digest(data(MIB))).raise_for_status()
        before = upload.file(PATH)
        upload.put_part(PATH, 1, data(MIB)).raise_for_status()
        assert upload.file(PATH) == before
        assert upload.stored() == [data(MIB)]

    def test_other_bytes(self, upload: Uploading) -> None:
        upload.put(PATH, data(2 * MIB)).raise_for_status()
        upload.put_part(PATH, 1, data(MIB, seed=1)).raise_for_status()
        assert upload.file(PATH)["complete"]
        assert upload.file(PATH)["sha256"] is None
        assert upload.stored() == [data(MIB, seed=1) + data(2 * MIB)[MIB:]]

    def test_wrong_digest_leaves_the_first_one(self, upload: Uploading) -> None:
        upload.put_part(PATH, 1, data(MIB)).raise_for_status()
        answer = upload.put_part(PATH, 1, data(MIB, seed=1), **digest(b"else"))
        error(answer, 400, "digest_mismatch")
        assert upload.stored() == [data(MIB)]
        assert upload.file(PATH)["parts"][0]["sha256"] == hashlib.sha256(data(MIB)).hexdigest()

    def test_broken_off_leaves_the_first_one(self, upload: Uploading) -> None:
        upload.put_part(PATH, 1, data(MIB)).raise_for_status()
        with upload.beginning(f"{PATH}/parts/1", MIB, data(MIB, seed=1)[:-9]):
            eventually(lambda: len(upload.stored()) == 2)
        assert eventually(lambda: upload.stored() == [data(MIB)])
        assert upload.file(PATH)["received"] == MIB

    @pytest.mark.fault("e1")
    def test_at_once_gives_one_or_the_other(self, upload: Uploading) -> None:
        contents = [data(MIB, seed=seed) for seed in range(6)]
        with ThreadPoolExecutor(6) as pool:
            answers = [*pool.map(lambda content: upload.put_part(PATH, 1, content), contents)]
        assert {answer.status_code for answer in answers} == {200}
        (stored,) = upload.stored()
        assert stored in contents
        assert upload.file(PATH)["parts"][0]["sha256"] == hashlib.sha256(stored).hexdigest()


class TestRefused:
    @pytest.mark.parametrize("number", [0, 100_001, 10**30])
    def test_number(self, upload: Uploading, number: int) -> None:
        answer = upload.put_part(PATH, number, b"abc")
        assert error(answer, 400, "invalid_request")["param"].endswith("number")
        assert upload.get()["files"] == []

    def test_only_a_number_makes_a_part(self, upload: Uploading) -> None:
        upload.put("a/parts/b.txt", b"abc").raise_for_status()
        assert upload.file("a/parts/b.txt")["complete"]

    def test_behind_the_limit(self, upload: Uploading) -> None:
        error(upload.put_part(PATH, 100_000, b"abc"), 413, "payload_too_large")

    def test_empty(self, upload: Uploading) -> None:
        error(upload.put_part(PATH, 1, b""), 400, "invalid_request")
        error(upload.put_part(PATH, 1, iter([])), 400, "invalid_request")

    def test_larger_than_a_part(self, upload: Uploading) -> None:
        error(upload.put_part(PATH, 1, data(MIB + 1)), 413, "payload_too_large")
        error(upload.put_part(PATH, 1, iter([data(MIB + 1)])), 413, "payload_too_large")
        assert all(not file["received"] for file in upload.get()["files"])

    def test_wrong_digest(self, upload: Uploading) -> None:
        error(upload.put_part(PATH, 1, b"abc", **digest(b"x")), 400, "digest_mismatch")
        assert upload.file(PATH)["parts"] == []

    def test_short_before_others(self, upload: Uploading) -> None:
        upload.put_part(PATH, 3, data(MIB)).raise_for_status()
        error(upload.put_part(PATH, 2, b"abc"), 409, "size_mismatch")

    def test_behind_the_last(self, upload: Uploading) -> None:
        upload.put_part(PATH, 2, b"abc").raise_for_status()
        error(upload.put_part(PATH, 3, data(MIB)), 409, "size_mismatch")

    def test_range_of_another_part(self, upload: Uploading) -> None:
        answer = upload.put_part(PATH, 2, data(MIB), **_number_range(1, 3 * MIB))
        assert f"offset {MIB}" in error(answer, 409, "offset_mismatch")["message"]

    def test_other_size_than_the_total_leaves(self, upload: Uploading) -> None:
        total = MIB + 10
        upload.put_part(PATH, 1, data(MIB), **_number_range(1, total)).raise_for_status()
        error(upload.put_part(PATH, 2, data(11)), 400, "invalid_request")
        error(upload.put_part(PATH, 2, iter([data(11)])), 400, "invalid_request")
        error(upload.put_part(PATH, 3, data(11)), 400, "invalid_request")
        upload.put_part(PATH, 2, data(10)).raise_for_status()
        assert upload.file(PATH)["complete"]

    def test_totals_that_differ(self, upload: Uploading) -> None:
        upload.put_part(PATH, 1, data(MIB), **_number_range(1, 2 * MIB)).raise_for_status()
        answer = upload.put_part(PATH, 2, data(MIB), **_number_range(2, 3 * MIB))
        error(answer, 409, "size_mismatch")

    def test_total_that_a_short_part_belies(self, upload: Uploading) -> None:
        upload.put_part(PATH, 2, b"abc").raise_for_status()
        answer = upload.put_part(PATH, 1, data(MIB), **_number_range(1, 3 * MIB))
        error(answer, 409, "size_mismatch")


class TestWithWholeFiles:
    def test_a_whole_file_replaces_parts(self, upload: Uploading) -> None:
        upload.put_part(PATH, 3, data(MIB)).raise_for_status()
        upload.put(PATH, b"whole").raise_for_status()
        assert upload.stored() == [b"whole"]

    def test_a_part_of_a_replaced_file_is_refused(self, upload: Uploading) -> None:
        with upload.beginning(f"{PATH}/parts/1", MIB, data(1000)) as raw:
            assert eventually(lambda: len(upload.stored()) == 1)
            upload.put(PATH, b"whole").raise_for_status()
            raw.send(data(MIB)[1000:])
            assert b"transfer_taken_over" in raw.answer()
        assert upload.stored() == [b"whole"]

    def test_a_stream_goes_on_in_parts(self, upload: Uploading) -> None:
        content = data(2 * MIB + 3)
        upload.put(PATH, content[:MIB], **sent_range(0, MIB, len(content))).raise_for_status()
        for number in (3, 2):
            part = content[(number - 1) * MIB : number * MIB]
            upload.put_part(PATH, number, part).raise_for_status()
        assert upload.file(PATH)["complete"]
        assert upload.stored() == [content]
