"""What a prompt keeps, drops, and asks for. The exact texts are the recorded cases' affair."""

from itertools import product

import pytest

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    Effort,
    ImageSource,
    Message,
    ResponseFormat,
    SystemMessage,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    Version,
)
from deepinfer.recipe.prompt_text import EFFORT
from deepinfer.recipe.render import render

VERSIONS: tuple[Version, ...] = ("v4", "v4.1")
EFFORTS: tuple[Effort | None, ...] = (None, "low", "high", "xhigh", "max")
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
TOOL = ToolDefinition("f", "d", {"type": "object", "properties": {}})
CALL = ToolCall("c", "f", "{}")
U, V = UserMessage("u"), UserMessage("v")

# What comes after the first assistant header, up to its text.
THOUGHT = AssistantMessage("a", "old thoughts")
THOUGHT_AND_CALL = AssistantMessage("a", "old thoughts", (CALL,))
NO_THOUGHT = AssistantMessage("a", None)


def first_answer(prompt: str) -> str:
    """What stands between the first assistant's header and its text "a"."""
    return prompt.split(ASSISTANT, 1)[1].split("a", 1)[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("answer", "rest", "tools", "choice", "kept"),
    [
        (THOUGHT, [V], [], "auto", False),
        (THOUGHT, [V], [TOOL], "auto", True),
        (THOUGHT, [V], [TOOL], "required", True),
        (THOUGHT, [V], [TOOL], "none", False),
        (THOUGHT, [V], [ToolDefinition("f", defer_loading=True)], "auto", True),
        # No tools now, though there were some: even the thoughts of a turn that still goes on.
        (THOUGHT_AND_CALL, [ToolMessage("r", "c")], [], "auto", False),
        (THOUGHT_AND_CALL, [ToolMessage("r", "c")], [TOOL], "auto", True),
        (THOUGHT_AND_CALL, [ToolMessage("r", "c"), V], [TOOL], "auto", True),
    ],
)
def test_old_thoughts(
    answer: Message,
    rest: list[Message],
    tools: list[ToolDefinition],
    choice: ToolChoice,
    kept: bool,
    version: Version,
) -> None:
    """J11: thoughts of earlier turns are kept when no tools are in play, or lost when some are."""
    messages = (U, answer, *rest)
    conversation = Conversation(messages, tools=tuple(tools), tool_choice=choice)
    expected = "<think>old thoughts</think>" if kept else "</think>"
    assert first_answer(render(conversation, version).prompt) == expected


@pytest.mark.parametrize(
    ("version", "thinking", "answer", "expected"),
    [
        ("v4", True, NO_THOUGHT, "</think>"),
        ("v4.1", True, NO_THOUGHT, "<think></think>"),
        # V4 leaves it to whoever makes the conversation; V4.1 looks at the switch.
        ("v4", False, THOUGHT, "<think>old thoughts</think>"),
        ("v4.1", False, THOUGHT, "</think>"),
    ],
)
def test_thoughts_where_versions_differ(
    version: Version, thinking: bool, answer: Message, expected: str
) -> None:
    """J11: one version's rule for missing or unwanted thoughts is applied to the other."""
    conversation = Conversation((U, answer, V), thinking=thinking, tools=(TOOL,))
    assert first_answer(render(conversation, version).prompt) == expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("thinking", [True, False])
def test_effort_and_thinking(thinking: bool, effort: Effort | None, version: Version) -> None:
    """J13: the effort or the thinking switch has no effect on the prompt."""
    prompt = render(Conversation((U,), thinking=thinking, effort=effort), version).prompt
    text = EFFORT[version][effort or "high"] if thinking else ""
    think = "<think>" if thinking else "</think>"
    role = SYSTEM if version == "v4.1" and text else ""
    assert prompt == f"{BOS}{role}{text}{USER}u{ASSISTANT}{think}"


@pytest.mark.parametrize("version", VERSIONS)
def test_efforts_differ(version: Version) -> None:
    """J13: two levels say the same."""
    assert len({EFFORT[version][effort] for effort in ("low", "high", "max")}) == 3
    assert EFFORT[version]["xhigh"] == EFFORT[version]["high"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("thinking", "tools"), list(product([True, False], [(), (TOOL,)])))
def test_continued_answers(
    thinking: bool, tools: tuple[ToolDefinition, ...], version: Version
) -> None:
    """J13: an answer that is to be continued is closed, or another one is started after it."""

    def after_user(answer: AssistantMessage) -> str:
        conversation = Conversation((U, answer), thinking=thinking, tools=tools)
        return render(conversation, version).prompt.split(f"{USER}u", 1)[1]

    thoughts = "t" if thinking or version == "v4" else None
    think = f"<think>{thoughts}</think>" if thoughts else "</think>"
    assert after_user(AssistantMessage("x", "t", prefix=True)) == f"{ASSISTANT}{think}x"
    open_think = "<think>t" if thinking else think
    assert after_user(AssistantMessage("", "t", prefix=True)) == ASSISTANT + open_think
    closed = f"{EOS}{ASSISTANT}" + ("<think>" if thinking else "</think>")
    kept = think if tools else "</think>"
    assert after_user(AssistantMessage("x", "t")) == f"{ASSISTANT}{kept}x{closed}"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v4", f"{BOS}one\n\ntwo{USER}u{USER}<tool_result>r</tool_result>{ASSISTANT}</think>"),
        (
            "v4.1",
            f"{BOS}{SYSTEM}one{USER}u{SYSTEM}two{SYSTEM}{USER}<tool_result>r</tool_result>"
            f"{ASSISTANT}</think>",
        ),
    ],
)
def test_later_system_messages(version: Version, expected: str) -> None:
    """J13: a system's (or developer's) later message is lost, or moved in V4.1."""
    systems = [SystemMessage(text) for text in ("one", "two", "")]
    messages = (systems[0], U, systems[1], systems[2], ToolMessage("r", "c"))
    assert render(Conversation(messages, thinking=False), version).prompt == expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("prefix", [True, False])
def test_required_call_is_started(prefix: bool, version: Version) -> None:
    """A call is required, but the prompt leaves it to the model whether to make one."""
    messages = (U, AssistantMessage("x", prefix=True)) if prefix else (U,)
    conversation = Conversation(messages, False, (TOOL,), tool_choice="required")
    word = {"v4": "tool_calls", "v4.1": " calls"}[version]
    assert render(conversation, version).prompt.endswith(f"\n\n<｜DSML｜{word}>\n")


def test_the_same_message_twice() -> None:
    """Messages are told apart by identity, and one that comes again counts as the first."""
    again = AssistantMessage("a", "old thoughts", prefix=True)
    twice = render(Conversation((again, U, again)), "v4.1").prompt
    copies = render(
        Conversation((again, U, AssistantMessage("a", "old thoughts", None, True))), "v4.1"
    )
    assert twice == copies.prompt
    assert twice.endswith(f"{ASSISTANT}<think>old thoughts</think>a")


@pytest.mark.parametrize(
    ("messages", "response_format", "thinking", "expected"),
    [
        # At the very start it does not keep its thoughts; behind anything it does.
        ([AssistantMessage("a", "t", prefix=True)], "text", True, "</think>a"),
        ([U, AssistantMessage("a", "t", prefix=True)], "text", True, "<think>t</think>a"),
        # The format's text makes a system message, which is then the first; an effort does not.
        ([AssistantMessage("a", "t", prefix=True)], "json_object", True, "<think>t</think>a"),
        # Nothing is left open that was not opened.
        ([U, AssistantMessage("", "t", prefix=True)], "text", False, "</think>"),
        ([AssistantMessage("", "t", prefix=True)], "text", True, "</think>"),
        ([U, AssistantMessage("", None, prefix=True)], "text", True, "<think>"),
    ],
)
def test_continued_at_the_start_of_v41(
    messages: list[Message], response_format: ResponseFormat, thinking: bool, expected: str
) -> None:
    """V4.1 counts a system message that it puts first itself in one case and not in the other."""
    conversation = Conversation(tuple(messages), thinking, response_format=response_format)
    prompt = render(conversation, "v4.1").prompt
    assert prompt.split(ASSISTANT, 1)[1] == expected


@pytest.mark.parametrize(("version", "expected"), [("v4", "ubc"), ("v4.1", "aubc")])
def test_images_of_empty_messages(version: Version, expected: str) -> None:
    """Images of a message that is left out are sent, or those of one that is merged are not."""

    def image(url: str) -> tuple[ImageSource, ...]:
        return (ImageSource(url=url),)

    messages = (
        SystemMessage("", image("a")),
        UserMessage("u", image("u")),
        UserMessage("", image("b")),
        ToolMessage("", "c", image("c")),
    )
    sources = render(Conversation(messages), version).image_sources
    assert "".join(source.url or "" for source in sources) == expected
