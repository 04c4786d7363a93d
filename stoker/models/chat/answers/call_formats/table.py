# ruff: noqa: RUF001 (marks of models that are written with unusual characters)
"""Known formats of calls.

If several formats read a chat template's calls equally well, the first is chosen.
"""

from collections.abc import Sequence

from stoker.models.chat.answers.call_formats.arguments import (
    KeywordArguments,
    NestedArguments,
    Parameters,
)
from stoker.models.chat.answers.call_formats.format import Format
from stoker.models.chat.answers.call_formats.gemma_arguments import GemmaArguments

_NAMED = r"[\"']?name[\"']?\s*:"
_DSML = "｜DSML｜"
_MINIMAX = "]<]minimax[>["
_KEYED = Parameters(before="<arg_key>", between="</arg_key>\n<arg_value>", after="</arg_value>")


def _invoke(
    name: str,
    section: str,
    before: str,
    *,
    between: str = '">',
    again: bool = False,
    in_template: str,
) -> Format:
    """Returns a format of elements `invoke` and `parameter`.

    Args:
        section: the name of the element around all calls.
        before: prefix of the names of the other elements.
    """
    return Format(
        name=name,
        section=(f"<{section}>\n", f"</{section}>"),
        again=again,
        layout=f'<{before}invoke name="§name">\n§args\n</{before}invoke>',
        arguments=Parameters(
            before=f'<{before}parameter name="', between=between, after=f"</{before}parameter>"
        ),
        in_template=in_template,
    )


FORMATS: Sequence[Format] = (
    # --- a JSON object for each call ---
    Format(
        name="hermes",
        layout="<tool_call>\n§object\n</tool_call>",
        in_template=rf"<tool_call>(?:\s|\\n)*(?:\{{+{_NAMED}|</tool_call>)",
    ),
    Format(
        name="llama3",
        layout="§object",
        keys=("name", "parameters"),
        separator="; ",
        marks=["<|python_tag|>"],
        at_start=True,
        in_template=r'\{+"name"\s*:.{1,40}"parameters"\s*:|<\|python_tag\|>',
    ),
    Format(
        name="gigachat3",
        layout="<|message_sep|>\n\nfunction call<|role_sep|>\n§object",
        marks=["<|message_sep|>\n\nfunction call<|role_sep|>"],
        several=False,
        in_template=r"function call<\|role_sep\|>",
    ),
    Format(
        name="gigachat3.1",
        layout="<|function_call|>§object",
        several=False,
        in_template=r"<\|function_call\|>",
    ),
    Format(
        name="minimax-m1",
        section=("<tool_calls>\n", "</tool_calls>"),
        layout="§object",
        in_template=rf"<tool_calls>\s*\{{+{_NAMED}",
    ),
    # --- JSON objects in a list ---
    Format(
        name="mistral",
        section=("[TOOL_CALLS] [", "]"),
        layout="§object",
        members=("", ', "id": "§id"'),
        separator=", ",
        marks=["[TOOL_CALLS]"],
        in_template=r"\[TOOL_CALLS\](?!.*\[ARGS\])",
    ),
    Format(
        name="tool-calls-list",
        section=("<tool_calls>[", "]</tool_calls>"),
        layout="§object",
        separator=", ",
        marks=["<tool_calls>"],
        in_template=r"<tool_calls>\s*\[",
    ),
    Format(
        name="nemotron-v2",
        section=("<TOOLCALL>[", "]</TOOLCALL>"),
        layout="§object",
        separator=", ",
        marks=["<TOOLCALL>"],
        in_template="<TOOLCALL>",
    ),
    Format(
        name="command-r7b",
        section=("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
        layout="§object",
        keys=("tool_name", "parameters"),
        members=('"tool_call_id": "§id", ', ""),
        separator=",\n    ",
        marks=["<|START_ACTION|>"],
        in_template=r"<\|START_ACTION\|>",
    ),
    Format(
        name="command-r",
        section=("Action:```json\n[\n    ", "\n]```"),
        layout="§object",
        keys=("tool_name", "parameters"),
        separator=",\n    ",
        marks=["Action:```json", "Action: ```json", "Action:\n```json"],
        enforced=False,
        why_free="The model writes its text answers as calls of a tool 'directly-answer'.",
        in_template=r"Action:\s*```json",
    ),
    Format(
        name="apertus",
        section=("<|tools_prefix|>[", "]<|tools_suffix|>"),
        layout='{"§name": §args}',
        separator=", ",
        marks=["<|tools_prefix|>"],
        in_template=r"<\|tools_prefix\|>",
    ),
    Format(
        name="firefunction",
        section=(" functools[", "]"),
        layout="§object",
        separator=", ",
        in_template=r"functools\[",
    ),
    Format(
        name="granite-3",
        section=("<|tool_call|>[", "]"),
        layout="§object",
        separator=", ",
        marks=["<|tool_call|>"],
        in_template=r"<\|tool_call\|>",
    ),
    # --- a name, then JSON ---
    Format(
        name="mistral-args",
        layout="[TOOL_CALLS]§name[ARGS]§args",
        in_template=r"\[ARGS\](?!.*\[CALL_ID\])",
    ),
    Format(
        name="mistral-call-id",
        layout="[TOOL_CALLS]§name[CALL_ID]§id[ARGS]§args",
        in_template=r"\[CALL_ID\]",
    ),
    Format(
        name="deepseek-v3.1",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        layout="<｜tool▁call▁begin｜>§name<｜tool▁sep｜>§args<｜tool▁call▁end｜>",
        in_template="<｜tool▁calls▁begin｜>(?!.*```json)",
    ),
    Format(
        name="deepseek-v3",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        layout=(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>§name\n```json\n§args\n```<｜tool▁call▁end｜>"
        ),
        in_template="<｜tool▁calls▁begin｜>",
    ),
    Format(
        name="kimi-k2",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        layout=(
            "<|tool_call_begin|>functions.§name:§id<|tool_call_argument_begin|>§args"
            "<|tool_call_end|>"
        ),
        in_template=r"<\|tool_calls_section_begin\|>",
    ),
    Format(
        name="solar-open",
        section=("<|tool_calls|>", ""),
        layout="<|tool_call:begin|>§id<|tool_call:name|>§name<|tool_call:args|>§args<|tool_call:end|>",
        in_template=r"<\|tool_call:begin\|>",
    ),
    Format(
        name="functionary-3.1",
        layout="<function=§name>§args</function>",
        in_template=r"<function=[\w{}' .\[\]+]+>\{+",
    ),
    Format(
        name="functionary-3.2",
        layout=">>>§name\n§args",
        enforced=False,
        why_free="The model's texts begin like its tool calls.",
        in_template=">>>all",
    ),
    Format(
        name="harmony",
        layout=" to=functions.§name<|message|>§args",
        in_header=r"to=functions\.([^\s<]+)",
        in_template=r"<\|channel\|>",
    ),
    # --- marks around each argument ---
    Format(
        name="qwen3-coder",
        layout="<tool_call>\n<function=§name>\n§args\n</function>\n</tool_call>",
        arguments=Parameters(before="<parameter=", between=">", after="</parameter>", newline=True),
        in_template=r"<tool_call>\s*<function=.*<parameter=",
    ),
    Format(
        name="seed-oss",
        layout="<seed:tool_call>\n<function=§name>\n§args\n</function>\n</seed:tool_call>",
        arguments=Parameters(before="<parameter=", between=">", after="</parameter>", python=True),
        in_template="<seed:tool_call>",
    ),
    Format(
        name="glm-4",
        layout="<tool_call>§name\n§args\n</tool_call>",
        arguments=_KEYED,
        in_template=r"<arg_key>",
    ),
    Format(
        name="hunyuan-3",
        section=("<tool_calls:opensource>\n", "</tool_calls:opensource>"),
        layout=("<tool_call:opensource>§name<tool_sep:opensource>\n§args\n</tool_call:opensource>"),
        arguments=Parameters(
            before="<arg_key:opensource>",
            between="</arg_key:opensource>\n<arg_value:opensource>",
            after="</arg_value:opensource>",
        ),
        in_template="<arg_key:opensource>",
    ),
    _invoke("minimax-m2", "minimax:tool_call", "", in_template="<minimax:tool_call>"),
    _invoke(
        "deepseek-v3.2",
        f"{_DSML}function_calls",
        _DSML,
        between='" string="§string">',
        in_template=f"<{_DSML}function_calls>",
    ),
    _invoke(
        "deepseek-v4",
        f"{_DSML}tool_calls",
        _DSML,
        between='" string="§string">',
        in_template=f"<{_DSML}tool_calls>",
    ),
    _invoke(
        "muse", "atem:function_calls", "atem:", again=True, in_template="<atem:function_calls>"
    ),
    Format(
        name="minicpm5",
        layout='<function name="§name">§args</function>',
        arguments=Parameters(
            before='<param name="', between='">', after="</param>", python=True, cdata=True
        ),
        in_template='<param name="',
    ),
    Format(
        name="kimi-k3",
        section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        layout='<|open|>call tool="§name" index="§id"<|sep|>§args<|close|>call<|sep|>',
        arguments=Parameters(
            before='<|open|>argument key="',
            between='" type="§type"<|sep|>',
            after="<|close|>argument<|sep|>",
        ),
        in_template=r"<\|open\|>",
    ),
    Format(
        name="minimax-m3",
        section=(f"{_MINIMAX}<tool_call>\n", f"{_MINIMAX}</tool_call>"),
        layout=f'{_MINIMAX}<invoke name="§name">§args{_MINIMAX}</invoke>',
        arguments=NestedArguments(_MINIMAX),
        in_template=r"\]<\]minimax\[>\[",
    ),
    # --- special notations ---
    Format(
        name="gemma-4",
        layout="<|tool_call>call:§name§args<tool_call|>",
        arguments=GemmaArguments(),
        separator="",
        in_template=r"<\|tool_call>call:",
    ),
    Format(
        name="lfm2",
        section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        layout="§name(§args)",
        arguments=KeywordArguments(),
        separator=", ",
        marks=["<|tool_call_start|>"],
        in_template=r"<\|tool_call_start\|>",
    ),
    Format(
        name="pythonic",
        section=("[", "]"),
        layout="§name(§args)",
        arguments=KeywordArguments(),
        separator=", ",
        at_start=True,
        in_template=r"func_name1\(|\[func|pythonic",
    ),
)
