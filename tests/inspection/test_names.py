import pytest

from stoker.inspection import FailureCode, InspectionError, validate_path
from stoker.inspection.names import refuse_clashes


class TestValidatePath:
    @pytest.mark.parametrize(
        "path",
        [
            "config.json",
            ".gitattributes",
            "1_Pooling/config.json",
            "2_Dense/.gitattributes",
            "a/b/c/d.txt",
            "model-00001-of-00002.safetensors",
            "LICENSE",
            "c++-notes_1.0+2.txt",
            "a" * 128,
            "/".join(["a" * 128, "b" * 126]),
            "CONFIG.json",
            "com.txt",
            "console",
        ],
    )
    def test_accepts(self, path: str) -> None:
        validate_path(path)

    @pytest.mark.case(8)
    @pytest.mark.parametrize(
        "path",
        [
            "",
            ".",
            "..",
            "../config.json",
            "a/../b",
            "a/..",
            "..a",
            "a..b",
            "/etc/passwd",
            "//host/share",
            "a//b",
            "a/",
            "a\\b",
            "..\\b",
            "C:\\model",
            "C:model",
            "\\\\host\\share",
            "a\x00b",
            "config.json\x00.txt",
            "a\nb",
            "config.json\n",
            "a\tb",
            "a\x7fb",
            "a b",
            " a",
            "a ",
            "a.",
            "a/b./c",
            ".hidden",
            ".git/config",
            ".gitattributes/x",
            ".gitignore",
            ".gitattributes.",
            "-rf",
            "_private",
            "~/x",
            "$HOME",
            "%2e%2e/x",
            "a:b",
            "a*b",
            "a?b",
            "a|b",
            "a'b",
            'a"b',
            "c\u043enfig.json",
            "config\u2024json",
            "a\u2215b",
            "a\uff0fb",
            "\uff0e\uff0e/a",
            "conf\u200big.json",
            "nosj.gifnoc\u202e",
            "\ufb01le.txt",
            "é.txt",
            "\u0661.txt",
            "\ud800",
            "CON",
            "con",
            "nul.txt",
            "NUL.tar.gz",
            "a/Aux",
            "com1.json",
            "LPT9",
            "a/b/c/d/e",
            "a" * 129,
            "/".join(["a" * 128, "b" * 127]),
            "a" * 100_000,
        ],
    )
    def test_refuses(self, path: str) -> None:
        with pytest.raises(InspectionError) as caught:
            validate_path(path)
        assert caught.value.code is FailureCode.BAD_PATH
        assert "Rename" in caught.value.message
        assert caught.value.message.isascii()
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 600
        assert caught.value.path is not None


class TestRefuseClashes:
    @pytest.mark.case(8)
    @pytest.mark.parametrize(
        "paths",
        [
            ["a.txt", "A.txt"],
            ["x/a", "X/b"],
            ["x/y/a", "x/Y/b"],
            ["x", "X/a"],
            ["x", "x/a"],
            ["x/y", "x/y/z"],
        ],
    )
    def test_refuses(self, paths: list[str]) -> None:
        for order in (paths, paths[::-1]):
            with pytest.raises(InspectionError) as caught:
                refuse_clashes(order)
            assert caught.value.code is FailureCode.PATH_CLASH

    def test_accepts_files_of_the_same_name_in_different_folders(self) -> None:
        refuse_clashes(["config.json", "1_Pooling/config.json", "2_Pooling/config.json", "1"])
