"""JSON that models legitimately write and that constraints have corrupted."""

import json

_ESCAPED = (
    *range(0x20),
    *(0x22, 0x26, 0x27, 0x2F, 0x3C, 0x3E, 0x41, 0x5C, 0x7F, 0x80, 0x85, 0x9F, 0xA0, 0xE9, 0x130),
    *(0x4E16, 0x2028, 0x2029, 0xD7FF, 0xE000, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF),
    *(0x10000, 0x1F600, 0x10FFFF),
)


def _escape(code: int) -> str:
    units = chr(code).encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_RAW = (
    *("é", "ß", "İ", "世界", "日本語のテキスト", "Ελληνικά", "עברית", "عربى", "ไทย", "한국어"),
    *("😀", "👩\u200d👩\u200d👧", "🏴\U000e0067\U000e007f", "\U00010000", "\U0010ffff", "e\u0301"),
    *("\x7f", "\x80", "\x85", "\xa0", "\xad", "\u200b", "\u202e", "\u2028", "\u2029", "\ufeff"),
    *("\ufffd", "\ufffe", "\uffff", "\ue000", "\ud7ff", "\u0000".replace("\0", "NUL")),
    *("a" * 500, "é" * 200, "😀" * 60, " ", "   ", "'", "''", "`", "``` json", "#!$%&()*+,-.:;=?@"),
    *("{", "}", "[", "]", "{}", "[]", "{{x}}", "}}", "},", ",", ":", ", ", ": ", "//", "/* */"),
    *("<b>bold</b>", "<!-- x -->", "<br/>", "<tag attr='1'>", "&amp;", "<", ">", "</", "<|", "|>"),
    *("5 <unit>", "<unit>", "<unit><unit>", "<think>", "</think>", "<think>x</think>"),
    *(
        "<tool",
        "tool_call",
        "[TOOL",
        "<|im_sta",
        "<s",
        "«x»",
        "%json {}",
        "$ref",
        "@form",
        "start:",
    ),
    *("0", "-1", "1e400", "null", "true", "NaN", "1,5", "0x1F", "2026-11-26T20:00:00Z", "50 %"),
    *("https://a.example/b?c=d&e=f#g", "C:", "a@b.example", "SELECT 1; --", "x = y", "Ctrl+C"),
)
_WRITTEN = (
    *(r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t"),
    *(
        r"say \"hi\"",
        r"C:\\dir\\file",
        r"a\/b",
        r"https:\/\/a.example\/b",
        r"\\u00e9",
        r"\\\"",
        r"\\\\",
    ),
    *(
        r"Caf\u00e9",
        r"Caf\u00E9",
        r"\u4e16\u754C",
        r"\ud83d\ude00",
        r"\uD83D\uDE00",
        r"\ud83D\uDe00",
    ),
    *(
        r"a\ud83d\ude00b\ud83d\ude00",
        r"\u003cb\u003e",
        r"\u0022quoted\u0022",
        r"line\nline",
        r"\u000a",
    ),
    *(
        r"\r\n",
        r"tab\there",
        r"{\"a\": \"b\"}",
        r"\u005cn",
        r"\\n",
        r"\\ud83d",
        r"é\u00e9",
        r"\u0041bc",
    ),
)
STRINGS = tuple(
    dict.fromkeys(
        f'"{body}"'
        for body in (
            "",
            *_WRITTEN,
            *(_escape(code) for code in _ESCAPED),
            *(_escape(code).upper().replace("\\U", "\\u") for code in _ESCAPED[-20:]),
            *_RAW,
        )
    )
)
"""JSON strings in their written form."""
VALUES = (
    *("0", "-0", "-0.0", "1", "-1", "1e400", "-1E400", "1e-400", "1E+5", "0.1000", "-1.5e3"),
    *("1" * 400, "0." + "3" * 400, "true", "false", "null", "[]", "{}", "[[]]", "[{}, []]"),
    *('{"": ""}', '{"": {"": {"": null}}}', '{"a": 1, "a": 2}', '{"\\u00e9": 1, "é": 2}'),
    *("[" * 60 + "]" * 60, '{"a": ' * 60 + "1" + "}" * 60, '[1, "a", null, {"b": [true]}]'),
)
"""JSON values of all kinds in their written form."""
for _text in (*STRINGS, *VALUES):
    json.loads(_text)
FORBIDDEN = {
    '"\\ud83d"': "half of a surrogate pair is no Unicode text",
    '"\\ude00"': "half of a surrogate pair is no Unicode text",
    '"\\ude00\\ud83d"': "a pair in the wrong order is two halves",
    '"\\ud83dx"': "half of a surrogate pair is no Unicode text",
    '"\n"': "JSON has no raw control characters",
    '"\x00"': "JSON has no raw control characters",
    '"\\x41"': "JSON has no such escape",
    '"\\u12"': "an escape has four digits",
    "'a'": "JSON has no single quotes",
    "01": "JSON has no leading zeros",
    ".5": "a number begins with a digit",
    "+1": "a number has no plus sign",
    "1.": "digits follow the point",
    "NaN": "JSON has no such number",
    "Infinity": "JSON has no such number",
    "True": "JSON has no such constant",
    "[1,2]": "values are written on one line, with a blank behind the comma",
    "[ 1]": "there are blanks behind commas and colons only",
    "[\n1]": "values are written on one line",
    '{"a":1}': "a blank follows the colon",
    "[1, ]": "JSON has no trailing commas",
    '{"a": 1, }': "JSON has no trailing commas",
    "{1: 2}": "names are strings",
    '"</s>"': "the token that ends an answer ends it",
    '"<s>"': "the token that begins a prompt is no text",
}
"""Maps each text that a JSON answer must not contain to the reason."""
