"""The demo model at work: questions whose answers a reader can check.

A sum with the thoughts that lead to it, words to repeat, a tool that is called and whose result
comes back, a fact that lies far behind, a story, and JSON that obeys a schema (that one needs
xgrammar: pip install -e ".[structured]"). All at temperature 0, so it prints the same every time.
DEEPINFER_HF_MODEL_DIR names another model.
"""

import json
from importlib.util import find_spec

from deepinfer import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=150)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "age": {"type": "integer"},
    },
    "required": ["name", "city", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
FILLER = "The road to the village was long and quiet. The baker sat by the fire. " * 30


def ask(llm: LLM, question: str, *earlier: dict, **options: object) -> str:
    """Ask one question, print it with its answer, return the answer."""
    messages = [*earlier, {"role": "user", "content": question}]
    answer = llm.chat(messages, GREEDY, **options)[0].message
    shown = question if len(question) < 100 else f"{question[:50]} [...] {question[-36:]}"
    print(f"\nuser: {shown}")
    if answer.reasoning_content:
        print(f"(thinks: {answer.reasoning_content})")
    print(f"model: {answer.content}")
    return answer.content


def use_tool(llm: LLM) -> None:
    """A question, the call that the model makes, the tool's result, and the answer from it."""
    question = {"role": "user", "content": 'Please get weather: city "Lima", days 3.'}
    answer = llm.chat([question], GREEDY, tools=[WEATHER], thinking=False)[0].message
    print(f"\nuser: {question['content']}")
    for call in answer.tool_calls:
        print(f"model calls: {call.name}({call.arguments})")
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ],
    }
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"size": 21})}
        for call in answer.tool_calls
    ]
    messages = [question, called, *results]
    said = llm.chat(messages, GREEDY, tools=[WEATHER], thinking=False)[0].message
    print(f"tool: {results[0]['content'] if results else 'was not called'}")
    print(f"model: {said.content}")


def main() -> None:
    """Ask everything."""
    with LLM() as llm:
        ask(llm, "What is 847 + 638?", thinking=True)
        ask(llm, "Repeat these words:\nviolin moon sandal table whisper garden", thinking=False)
        use_tool(llm)
        text = f"Read this and remember it.\n{FILLER}The code of the golden key is 7294. {FILLER}"
        print("\n(One of the 121 sentences that follow: The code of the golden key is 7294.)")
        ask(llm, f"{text}\nWhat is the code of the golden key?", thinking=False)
        ask(llm, "Write a story with a fox, a tower and a lamp.", thinking=False)
        if find_spec("xgrammar"):
            schema = {"name": "answer", "schema": PERSON}
            obeyed = {"type": "json_schema", "json_schema": schema}
            question = 'Write as JSON: name "Flora", city "Oslo", age 41.'
            ask(llm, question, thinking=False, response_format=obeyed)


if __name__ == "__main__":
    main()
