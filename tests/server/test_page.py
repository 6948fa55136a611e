"""The page at /, in a real browser, against a server that plays a part."""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deepinfer.bench.client import Target
from deepinfer.bench.load import UrlWorkload, bench_url
from deepinfer.server.page import page, policy
from tests.server.browser import Page, browser
from tests.server.scripted import READY, Part, scripted_server
from tests.server.servers import ServerProcess

TEXT = page().body.decode()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        found.look(1180, 760)
        yield found


@pytest.fixture
def part() -> Iterator[Part]:
    with scripted_server() as found:
        yield found


def opened(tab: Page, part: Part) -> Page:
    """The page, connected."""
    tab.open(part.url)
    tab.until("['ready', 'locked'].includes(document.getElementById('state').dataset.is)")
    return tab


def say(tab: Page, text: str) -> None:
    tab.run("document.getElementById('say').focus()")
    tab.type(text)
    tab.press("Enter", 13, "\r")


def has_ended(tab: Page, number: int = 1) -> None:
    """So many answers are over."""
    tab.until(f"document.querySelectorAll('.turn[aria-busy=false]').length === {number}", 60)


def text_of(tab: Page, selector: str) -> str:
    found: str = tab.run(f"document.querySelector('{selector}').textContent")
    return found


def test_nothing_comes_from_elsewhere() -> None:
    """The page needs a network that a server in a locked room does not have."""
    assert "//" not in re.sub(
        r"^\s*// .*$|//# .*$| // .*$| \d+ -+$|// -+ .*$", "", TEXT, flags=re.M
    )
    assert not re.search(r"@import|url\(|<iframe|<img|<object", TEXT)


def test_nothing_is_parsed_as_markup() -> None:
    """A model writes a script into the page of whoever reads its answer."""
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc"
    assert not re.search(ways, TEXT)
    assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=", TEXT)


def test_the_policy_allows_the_page_alone() -> None:
    """The policy lets any inline script run, and with it whatever got into the page."""
    found = policy(TEXT)
    assert "unsafe" not in found
    assert found.count("'sha256-") == 2
    assert policy(TEXT.replace('"use strict"', '"use strict" ')) != found
    assert dict(page().headers)["content-security-policy"] == found


@pytest.mark.slow
@pytest.mark.sample
def test_a_conversation(tab: Page, part: Part) -> None:
    """Thoughts run into the answer, settings are not sent, or the second question forgets the
    first."""
    part.deltas = [{"reasoning_content": "Hm, "}, {"reasoning_content": "yes."}]
    part.deltas += [{"content": "Use `n`:\n\n```py\nx = 1"}, {"content": "\n```\nDone."}]
    opened(tab, part)
    tab.run("document.getElementById('system').value = 'Be kind.'")
    tab.run("document.getElementById('temperature').value = '0.5'")
    tab.run("document.getElementById('max-tokens').value = '77'")
    say(tab, "How?")
    has_ended(tab)
    assert text_of(tab, ".thoughts div") == "Hm, yes."
    assert tab.run("document.querySelector('.thoughts').open") is False
    assert text_of(tab, ".said") == "Use n:pyCopyx = 1Done."
    assert "4 tokens" in text_of(tab, ".about")
    say(tab, "And then?")
    has_ended(tab, 2)
    first, second = part.asked
    assert first["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "How?"},
    ]
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0.5, 77, "demo")
    assert first["thinking"] == {"type": "enabled"}
    said = {"role": "assistant", "content": "Use `n`:\n\n```py\nx = 1\n```\nDone."}
    assert second["messages"][2:] == [said, {"role": "user", "content": "And then?"}]
    tab.run("document.getElementById('new').click()")
    assert tab.run("document.querySelectorAll('.turn').length") == 0
    tab.run("document.getElementById('thinking').value = 'off'")
    say(tab, "Anew")
    has_ended(tab)
    assert [one["content"] for one in part.asked[2]["messages"]] == ["Be kind.", "Anew"]
    assert part.asked[2]["thinking"] == {"type": "disabled"}
    assert not complaints(tab)


@pytest.mark.slow
@pytest.mark.sample
def test_an_answer_is_never_markup(tab: Page, part: Part) -> None:
    """A model's answer runs as a script, or loads an image that tells somebody of it."""
    evil = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"
    part.deltas = [{"reasoning_content": evil}, {"content": f"{evil}\n\n```{evil}\n{evil}\n```"}]
    opened(tab, part)
    say(tab, evil)
    has_ended(tab)
    assert tab.run("window.hit") is None
    assert tab.run("document.querySelectorAll('.turn img, .turn script').length") == 0
    assert evil in text_of(tab, ".said")
    assert text_of(tab, ".mine") == evil
    assert not complaints(tab)


@pytest.mark.slow
@pytest.mark.sample
def test_stop(tab: Page, part: Part) -> None:
    """Stop hides the answer but the server goes on with it; or what was said is forgotten."""
    part.deltas = [{"content": f"{i} "} for i in range(500)]
    part.pause_s = 0.02
    opened(tab, part)
    say(tab, "Count")
    tab.until("document.querySelector('.said') && document.querySelector('.said').textContent")
    tab.press("Escape", 27)
    has_ended(tab)
    assert text_of(tab, ".about") == "stopped"
    tab.until("!document.getElementById('send').hidden")
    assert until_left(part) == 1
    part.pause_s, part.deltas = 0.0, [{"content": "Yes."}]
    say(tab, "Go on")
    has_ended(tab, 2)
    assert part.asked[1]["messages"][1]["content"].startswith("0 1")


@pytest.mark.slow
@pytest.mark.sample
def test_faults_are_told(tab: Page, part: Part) -> None:
    """Something goes wrong, and the page shows a broken answer as a whole one, or nothing."""
    opened(tab, part)
    for number, (change, text) in enumerate(
        (
            ({"refusal": (429, "full", None)}, "The server is full"),
            ({"refusal": (503, "restarting", None)}, "The engine is not ready"),
            ({"refusal": (400, "max_tokens: too large", None)}, "max_tokens: too large"),
            ({"breaks_off": True}, "broke off"),
            ({"error_behind": "the engine ended"}, "the engine ended"),
        ),
        start=1,
    ):
        part.refusal, part.breaks_off, part.error_behind = None, False, None
        for name, value in change.items():
            setattr(part, name, value)
        say(tab, "Hello")
        has_ended(tab, number)
        assert text in text_of(tab, ".turn:last-child .fault span")
    part.error_behind = None
    tab.run("document.querySelector('.turn:last-child .fault button').click()")
    tab.until("!document.querySelector('.turn:last-child .fault')")
    # Questions without an answer are no part of the conversation.
    assert part.asked[-1]["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.slow
def test_too_many_requests_counts_down(tab: Page, part: Part) -> None:
    """Everybody who was turned away tries again at once, and is turned away again."""
    part.refusal = (429, "full", 2)
    opened(tab, part)
    say(tab, "Hello")
    has_ended(tab)
    assert tab.run("document.querySelector('.fault button').disabled") is True
    tab.until("!document.querySelector('.fault button').disabled")
    assert text_of(tab, ".fault button") == "Try again"


@pytest.mark.slow
@pytest.mark.sample
def test_a_key_is_asked_for(tab: Page, part: Part) -> None:
    """A server with keys leaves the page dead; or the key outlives the page."""
    part.key = "open sesame"
    opened(tab, part)
    assert text_of(tab, "#state") == "API key needed"
    say(tab, "Hello")
    has_ended(tab)
    assert "API key" in text_of(tab, ".fault span")
    assert tab.run("document.activeElement.id") == "key"
    tab.type("open sesame")
    tab.run("document.activeElement.blur()")
    tab.until("document.getElementById('state').dataset.is === 'ready'")
    tab.run("document.querySelector('.fault button').click()")
    tab.until("document.querySelector('.said').textContent === 'Hello.'")
    assert tab.run("localStorage.length + sessionStorage.length + document.cookie.length") == 0


@pytest.mark.slow
@pytest.mark.sample
def test_the_engine_beside_it(tab: Page, part: Part) -> None:
    """The numbers stand still, or the page says ready while nothing is."""
    opened(tab, part)
    part.live = {**READY, "running": 3, "waiting": 7, "tokens_per_s": 240.4, "hit_rate": 0.5}
    part.live |= {"accepted_per_step": 1.834, "blocks": {"used": 32, "all": 64}}
    tab.until("document.getElementById('running').textContent === '3'")
    shown = {
        one: text_of(tab, f"#{one}") for one in ("waiting", "rate", "hits", "drafts", "blocks")
    }
    assert shown == {
        "waiting": "7",
        "rate": "240",
        "hits": "50 %",
        "drafts": "1.83",
        "blocks": "32 of 64",
    }
    assert tab.run("document.getElementById('blocks-bar').value") == 0.5
    tab.until("document.querySelector('#curve polyline').points.length > 2")
    part.live = {**READY, "state": "restarting"}
    tab.until("document.getElementById('banner').textContent.includes('started again')")


@pytest.mark.slow
@pytest.mark.sample
def test_a_lost_server_is_found_again(tab: Page) -> None:
    """The server goes away, and the page needs to be loaded anew."""
    with scripted_server() as part:
        opened(tab, part)
        port = int(part.url.rpartition(":")[2])
    tab.until("document.getElementById('state').dataset.is === 'lost'")
    say(tab, "Hello")
    has_ended(tab)
    assert "no connection" in text_of(tab, ".fault span")
    with scripted_server(port):
        tab.until("document.getElementById('state').dataset.is === 'ready'")
        tab.run("document.querySelector('.fault button').click()")
        tab.until("document.querySelector('.said').textContent === 'Hello.'")


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 820, 1180])
def test_it_fits(tab: Page, part: Part, width: int) -> None:
    """On a narrow screen the page must be pushed sideways, or the message has no room."""
    part.deltas = [{"content": "x" * 400 + "\n\n```\n" + "y" * 400 + "\n```"}]
    tab.look(width, 640)
    opened(tab, part)
    say(tab, "z" * 300)
    has_ended(tab)
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    assert tab.run("document.getElementById('log').scrollWidth <= innerWidth")
    assert tab.run("document.getElementById('send').getBoundingClientRect().bottom <= innerHeight")
    assert tab.run("document.getElementById('log').clientHeight") > 200
    tab.look(1180, 760)


@pytest.mark.slow
@pytest.mark.sample
def test_the_demo_model_by_the_page(tab: Page, demo_server: ServerProcess, tmp_path: Path) -> None:
    """Page and server each do what they should, but do not fit together. The pictures stay in the
    folder of the test: pytest --basetemp says where."""
    tab.open(demo_server.url)
    tab.until("document.getElementById('state').dataset.is === 'ready'")
    assert text_of(tab, "#model") == "demo"
    tab.run("document.getElementById('temperature').value = '0'")
    tab.run("document.getElementById('thinking').value = 'high'")
    say(tab, "What is 47 + 38?")
    tab.until("document.querySelector('.thoughts div').textContent.length > 20", 60)
    has_ended(tab)
    assert "85" in text_of(tab, ".said")
    assert "tokens/s" in text_of(tab, ".about")
    tab.run("document.getElementById('thinking').value = 'off'")
    workload = UrlWorkload(streams=3, requests=3, input_words=30, output_len=150)
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(asyncio.run, bench_url(Target.of(demo_server.url), workload))
        tab.until("parseInt(document.getElementById('running').textContent) >= 3", 60)
        tab.until("parseFloat(document.getElementById('rate').textContent) > 0")
        tab.until("document.getElementById('blocks-bar').value > 0")
        say(tab, "Tell me a story.")
        tab.until("document.querySelectorAll('.said')[1].textContent.length > 40", 60)
        shots(tab, tmp_path)
        tab.press("Escape", 27)
        has_ended(tab, 2)
        assert not others.result().faults
    tab.until("document.getElementById('running').textContent === '0'")
    tab.until("document.getElementById('slots').textContent.startsWith('0 of')")
    assert not complaints(tab)


def shots(tab: Page, folder: Path) -> None:
    """Pictures of the page as it is now, in each of its looks."""
    for name, width, dark in (("light", 1180, False), ("dark", 1180, True), ("narrow", 390, False)):
        tab.look(width, 760, dark=dark)
        tab.save(folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000
    tab.look(1180, 760)


def until_left(part: Part) -> int:
    """Answers whose client went away, once there is one."""
    end = time.monotonic() + 5
    while not part.left and time.monotonic() < end:
        time.sleep(0.02)
    return part.left


def complaints(tab: Page) -> list[str]:
    """What went wrong in the page itself; advice is none."""
    return [line for line in tab.said if '"source": "recommendation"' not in line]
