"""The report is one valid page that shows every number, and hostile text in it stays text."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcore.environment import Task, ToolCall, ToolResult
from agentcore.trace import Reward, Trace
from tests.training.report_sample import sample_report, sample_trace, step
from training.report import Curve, Figure, ReportData, TraceView, render_report
from training.report.svg import line_chart, nice_ticks
from training.report.text import number, plain, visible
from training.report.views import figure_panels, trace_table

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.tables: list[list[int]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append(0)
        elif tag in ("td", "th"):
            self.tables[-1][-1] += int(dict(attrs).get("colspan") or 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_page_stands_alone() -> None:
    html = render_report(sample_report())
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert not re.search(r"https?://|@import|url\(", html)
    for tag, attrs in page.tags:
        assert tag not in ("script", "iframe", "img", "object", "embed", "form"), tag
        assert not any(name.startswith("on") for name in attrs)
        assert "src" not in attrs and attrs.get("href", "data:,") == "data:,"
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "prefers-color-scheme: dark" in html


def test_every_row_of_a_table_has_as_many_cells() -> None:
    for rows in Page(render_report(sample_report())).tables:
        assert len(set(rows)) == 1, rows


def test_headline_figures_keep_the_splits_apart() -> None:
    panels = figure_panels(sample_report().figures)
    assert [p.title for p in panels] == ["Held-out tasks", "Training tasks", "Adversarial tasks"]
    assert [f.stage for f in panels[0].rows[0][1]] == ["base", "warm start", "after RL"]
    text = Page(render_report(sample_report())).text
    assert "after RL 61 % 52 – 70 % n = 100" in text
    assert "base 6.00 steps no interval n = 100" in text


def test_every_component_return_and_advantage_is_shown() -> None:
    table = trace_table(sample_trace())
    assert table.components == ("progress", "invalid_call", "success", "brevity", "recall")
    cells = [[c.text for c in (*row.components, row.return_, row.advantage)] for row in table.rows]
    assert cells == [
        ["0.15", "", "", "", "", "1.08", "0.31"],
        ["", "−0.10", "", "", "", "0.75", "−0.42"],
        ["", "", "", "", "", "–", "not trained"],
        ["−0.15", "", "1.00", "", "", "0.85", "not trained"],
    ]
    assert [c.text for c in table.totals] == ["0.00", "−0.10", "1.00", "0.20", "0.50"]
    assert [label for label, _ in table.elsewhere] == ["whole trace", "node run reasoning"]
    assert table.rows[0].tokens == ("113 in prompt", "17 in reply")
    assert table.rows[3].tokens == ("170 in prompt", "32 in reply", "cut off")
    assert table.rows[0].components[0].detail == "0.15 on call c1, from environment; 0.00 on call c2, from environment"
    text = Page(render_report(sample_report())).text
    for said in ('lookup (name="chair")', "→ chair: 30 progress 0.15", "did you mean 'lookup'?", "1 of 2 prices known"):
        assert said in text
    assert "superseded, does not count" in text and "no belief was shown" in text


def test_not_trained_differs_from_neutral() -> None:
    view = sample_trace()
    neutral = trace_table(replace(view, advantages={"step-1": 0.0, "step-2": None, "step-4": -0.0})).rows
    assert [(r.advantage.text, r.advantage.kind) for r in neutral] == [
        ("0.00", ""), ("not trained", "none"), ("not trained", "none"), ("0.00", "")]  # fmt: skip


def test_rewards_on_unknown_targets_are_not_lost() -> None:
    view = sample_trace()
    stray = replace(view.trace, rewards=(*view.trace.rewards, Reward("success", 0.5, "step", "gone")))
    labels = [label for label, _ in trace_table(replace(view, trace=stray)).elsewhere]
    assert labels[-1] == "step gone, which is not in this trace"


HOSTILE = (
    "<script>alert(1)</script>",
    "</style></title><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "{{ 7*7 }}{% raw %}",
    "\x1b[31mred\x1b[0m \x00 \x07 \r \x7f \x9b",
    "\u202eabc\u202c \u2066x\u2069 \u200b \ufeff \u2028",
    "tag \U000e0041 surrogate \ud800",
    "]]>&amp;&lt;",
)


def hostile_report(text: str) -> ReportData:
    call = ToolCall(text, text, {text: text, "n": [text]}, error=text, raw=text)
    hostile = step(
        1,
        text,
        (call,),
        (ToolResult(text, text, ok=False), ToolResult("other", text)),
        policy_id=text,
        belief=text,
        error=text,
        messages=(
            {"role": text, "content": text, text: text},
            {"role": "user", "content": [{"type": "text", "text": text}]},
        ),
    )
    trace = Trace(
        id=text,
        task=Task(text, "train", 0, text),
        outcome="failed",
        steps=(hostile,),
        rewards=(Reward(text, 1.0, "call", text, source=text), Reward("x", math.nan, "trace", text, source=text)),
        fork_of=text,
        problems=(text,),
    )
    return ReportData(
        title=text,
        figures=[
            Figure(text, text, text, 0.5, 0.4, 0.6, 10, unit=text),
            Figure(text, "train", text, 2.0, -1.0, 9.0, 1),
        ],
        curves=[Curve(text, text, [(0, 1, None, None), (1, 2, 1, 3)], x_label=text)],
        traces=[TraceView(trace, {hostile.id: math.inf}, {}, text)],
        manifest={text: {text: text}, "list": [text]},
        next_steps=[text],
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    html = render_report(hostile_report(text))
    html.encode()
    page = Page(html)
    known = {tag for tag, _ in Page(render_report(sample_report())).tags}
    assert {tag for tag, _ in page.tags} <= known | {"span"}
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", html)


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec=None), min_size=1, max_size=40))
def test_any_text_gives_a_page(text: str) -> None:
    Page(render_report(hostile_report(text)))


def test_hidden_characters_become_signs() -> None:
    assert str(visible("a\x1b[1m<b>")) == 'a<span class="ctl" title="U+001B">ESC</span>[1m&lt;b&gt;'
    assert "U+202E" in visible("\u202e") and "RIGHT-TO-LEFT OVERRIDE" in visible("\u202e")
    assert visible("naïve\tfaçade\n日本 العربية") == "naïve\tfaçade\n日本 العربية"
    assert plain("\x00\u200b\x7f") == "⟨NUL⟩⟨U+200B⟩⟨DEL⟩"


def test_numbers() -> None:
    values: list[Any] = [None, 0.0, -0.0, -0.125, 0.0004, -1e9, math.nan, -math.inf]
    assert [number(v) for v in values] == ["–", "0.00", "0.00", "−0.12", "0.0004", "−1e+09", "not a number", "−∞"]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.002, 0), (3, 3), (0, 0), (1e-7, 2e-7), (-1e6, 1e6), (0.1, 12.3)])
def test_ticks_enclose_the_data_and_are_few(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(0, math.nan, None, None)],
        [(3, 0.5, 0.4, 0.6)],
        [(0, 1, None, None), (1, math.inf, None, None), (2, 2, None, None)],
    ],
)
def test_curves_with_little_in_them(points: list[Any]) -> None:
    chart = str(line_chart(Curve("Loss", "nats", points)))
    Page(chart)
    assert "nan" not in chart and "inf" not in chart.replace("finite", "")
    assert ("<svg" in chart) == any(math.isfinite(p[1]) for p in points)


def test_a_gap_breaks_the_line() -> None:
    points = [(float(i), float(i) if i != 2 else math.nan, None, None) for i in range(5)]
    assert str(line_chart(Curve("Loss", "", points))).count("<polyline") == 2


def test_an_empty_report_and_an_empty_trace_are_pages() -> None:
    Page(render_report(ReportData("Nothing yet")))
    empty = Trace("t", Task("t", "train", 0, "do"), "abandoned", ())
    assert "This trace has no steps." in Page(render_report(ReportData("x", traces=[TraceView(empty)]))).text
