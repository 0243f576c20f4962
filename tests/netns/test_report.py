"""The picture and the page of a run: of any report, whole or in pieces, something to look at."""

from __future__ import annotations

import copy
import json
import struct
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from netns import sheet
from netns.ev_panel import abandoned
from netns.page import bounds, figure, write_page
from netns.panels import events_per_bin, fault_strip, scale_of
from netns.picture import draw
from netns.readings import Grid, bins_around, fault_spans, grid_of, states
from tests.netns import sample_report
from tests.netns.sample_report import Report

KINDS: dict[str, Callable[[], Report]] = {
    "black hole": sample_report.black_hole,
    "incast": sample_report.incast,
    "compare": sample_report.compare,
    "failed": sample_report.failed,
    "nothing": dict,
}
PNG = b"\x89PNG\r\n\x1a\n"
HOSTILE = "<script>alert('x')</script> & \"$\\frac$\" \ud800 \u6f22"
VOID = frozenset({"meta", "img", "br", "hr", "link"})


class Page(HTMLParser):
    """Reads a page, and fails where tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember what is open, and what the tag refers to."""
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        """Close the last that is open, and no other."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees."""
        return "".join(self.words)


def size_of(path: Path) -> tuple[int, int]:
    """Width and height from the header of a PNG."""
    head = path.read_bytes()[:24]
    assert head[:8] == PNG
    assert head[12:16] == b"IHDR"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def page_of(report: Report, folder: Path, picture: Path | bytes = PNG) -> Page:
    """The page of a report, read back."""
    write_page(report, picture, folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_has_its_width_and_is_not_blank(kind: str, tmp_path: Path) -> None:
    """A PNG, 1400 pixels wide, with something on it, whatever the report holds."""
    path = tmp_path / "report.png"
    draw(KINDS[kind](), path)
    width, height = size_of(path)
    assert width == 1400
    assert 100 < height < 3000
    image = np.asarray(imread(path))
    assert image.shape[:2] == (height, width)
    dark = (image[:, :, :3].min(axis=2) < 0.9).mean()
    assert dark > (0.2 if kind in ("black hole", "incast", "compare") else 0.002)


@pytest.mark.slow
def test_a_picture_is_quick_and_leaves_no_trace(tmp_path: Path) -> None:
    """Twenty EVs, 800 bins and a hundred thousand samples take moments; settings stay."""
    report = sample_report.black_hole()
    samples = report["runs"][0]["flows"][0]["samples"]
    count = 100_000
    for name in samples:
        samples[name] = np.linspace(0, 8, count).tolist()
    before = dict(mpl.rcParams)
    draw(report, tmp_path / "warm.png")
    began = time.perf_counter()
    draw(report, tmp_path / "report.png")
    took_s = time.perf_counter() - began
    assert took_s < 6, "usually below 2 s"
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traffic", "word"), [("all-reduce", "Operation"), ("messages", "Message"), (None, "Message")]
)
def test_ranks_complete_operations(
    traffic: str | None, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The title of the panel says what each dot is."""
    drawn: list[Figure] = []

    class Kept(Figure):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            drawn.append(self)

    monkeypatch.setattr(sheet, "Figure", Kept)
    report = sample_report.black_hole()
    report["scenario"]["traffic"] = traffic
    draw(report, tmp_path / "report.png")
    titles = [axes.get_title(loc="left") for axes in drawn[0].axes]
    assert [title.split(":")[0] for title in titles if "completion" in title] == [
        f"{word} completion"
    ]


@pytest.mark.parametrize(("warmup_s", "lanes"), [(0.3, 1), (4, 1), (0.3, 0)])
def test_what_is_not_judged_is_labelled(warmup_s: float, lanes: int) -> None:
    """In the strip above the panels: in the grey where it is long enough, else beside it."""
    axes = Figure(figsize=(14, 1), dpi=100).subplots()
    faults = [(5.0, 7.0, "blackhole on a-s2")][:lanes]
    fault_strip(axes, Grid(0.01, 800), [faults] if faults else [], warmup_s)
    assert "warm-up, not judged" in [text.get_text() for text in axes.texts]


@pytest.mark.slow
def test_two_hundred_evs_fit(tmp_path: Path) -> None:
    """Rows become thin, and the picture does not grow without end."""
    draw(sample_report.black_hole(evs=50), tmp_path / "report.png")
    assert size_of(tmp_path / "report.png")[1] < 3000


def without(value: Any, place: tuple[str | int, ...]) -> Any:
    """A copy of a report in which one place holds None."""
    found = changed = copy.deepcopy(value)
    for step in place[:-1]:
        found = found[step]
    found[place[-1]] = None
    return changed


def places(value: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a report, the first of each list standing for all."""
    found = [above] if above else []
    if isinstance(value, dict):
        for name, inner in value.items():
            found += places(inner, (*above, name))
    elif isinstance(value, list) and value:
        found += places(value[0], (*above, 0))
    return found


def small_report() -> Report:
    """A report that is drawn in little time, with everything in it once."""
    report = sample_report.black_hole()
    dead = [(1, 0.2, 0.3)]
    flow = sample_report.flow_of(seconds=0.5, planes=2, evs=1, dead=dead, backups=1)
    flow["paths"].sort(key=lambda path: -len(path["changes"]))
    run = report["runs"][0]
    run |= {"duration_s": 0.5, "flows": [flow], "links": run["links"][:1]}
    run["faults"] = [{"at_s": 0.2, "until_s": 0.3, "what": "cut"}]
    return report


@pytest.mark.slow
def test_every_value_may_be_missing(tmp_path: Path) -> None:
    """None in any place of a report costs what stood there, and neither picture nor page."""
    report = small_report()
    every = places(report)
    assert len(every) > 100
    for position, place in enumerate(every):
        broken = without(report, place)
        write_page(broken, b"", tmp_path / "report.html")
        # A page takes milliseconds and a picture a third of a second: a share of the places, spread
        # over the whole report, will do for it.
        if position % 16 == 3:
            draw(broken, tmp_path / "report.png")


@pytest.mark.parametrize(
    "odd",
    [
        {"runs": 7, "expectations": "x", "scenario": [], "machine": 1, "passed": []},
        {"runs": [None, {"flows": [None, {"goodput": {"bytes": ["x", None, float("nan")]}}]}]},
        {"runs": [{"flows": [{"samples": {"at_s": [[1], 2]}, "completions": {"at_s": "x"}}]}]},
        {"runs": [{"duration_s": 10**400, "flows": [{"paths": [{"changes": [{"at_s": 1}]}]}]}]},
        {"runs": [{"flows": [{"goodput": {"bin_ms": 0, "bytes": [0, 0]}, "planes": {"a": {}}}]}]},
    ],
)
def test_what_makes_no_sense_is_left_out(odd: Report, tmp_path: Path) -> None:
    """Values of a wrong kind are like missing ones."""
    draw(odd, tmp_path / "report.png")
    assert size_of(tmp_path / "report.png")[0] == 1400
    page_of(odd, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_well_formed_and_stands_alone(kind: str, tmp_path: Path) -> None:
    """Tags match, every expectation is there, and nothing is loaded from anywhere."""
    report = KINDS[kind]()
    page = page_of(report, tmp_path)
    for expectation in report.get("expectations", []):
        assert expectation["what"] in page.text
        assert expectation["metric"] in page.text
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "http://" not in source
    assert "https://" not in source
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert "script" not in page.seen


def test_a_page_says_what_happened(tmp_path: Path) -> None:
    """Verdict, picture, faults, percentiles, changes of paths, counters, and how to repeat it."""
    page = page_of(sample_report.black_hole(), tmp_path)
    for words in (
        "PASSED",
        "black hole on a-s2, s2-b",
        "mrc-lab run black-hole",
        "28.12",
        "500 to 800",
        "≤ 20",
        "p99, ms",
        "assumed bad (loss)",
        "blackholed",
        "391",
        "kernel 6.8.0",
    ):
        assert words in page.text, words
    assert "oversized" not in page.text, "no link has any"
    assert "a>s0" not in page.text, "a link without a packet"
    assert page.references[0].endswith("iVBORw0KGgo=")


def test_a_page_shows_errors_first(tmp_path: Path) -> None:
    """What went wrong stands above everything else."""
    page = page_of(sample_report.failed(), tmp_path)
    error, expected = "no answer from 10.0.2.1 in 5 s", "What had to be true"
    assert page.text.index(error) < page.text.index(expected)
    assert "receiver-b: ended with status 1" in page.text
    assert "FAILED" in page.text


def test_a_page_says_how_to_repeat_it(tmp_path: Path) -> None:
    """By the command that made it; a name with spaces stays one word."""
    report = sample_report.compare()
    assert "mrc-lab compare compare" in page_of(report, tmp_path).text
    report["runs"] = report["runs"][:1]
    report["scenario"]["name"] = "my own"
    assert "mrc-lab run --transport tcp 'my own'" in page_of(report, tmp_path).text


def test_a_page_without_a_picture(tmp_path: Path) -> None:
    """A picture that was never drawn is no reason to have no page."""
    page = page_of(sample_report.black_hole(), tmp_path, tmp_path / "missing.png")
    assert page.references == []


def hostile(value: Any) -> Any:
    """A report in which every text is an attack, the names of counters and planes too."""
    if isinstance(value, dict):
        free = "goodput_mbps", "packets", "messages"
        return {HOSTILE if key in free else key: hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return HOSTILE if isinstance(value, str) and value not in ("mrc", "assumed_bad") else value


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    """Names are escaped in the page and drawn as they are in the picture."""
    report = hostile(small_report())
    draw(report, tmp_path / "report.png")
    page = page_of(report, tmp_path, tmp_path / "report.png")
    assert "script" not in page.seen
    assert page.text.count("<script>alert('x')</script>") > 10


def test_reports_come_from_json(tmp_path: Path) -> None:
    """Samples hold what JSON can hold."""
    for make in KINDS.values():
        json.loads(json.dumps(make()))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (-3.0, "-3"),
        (1234567, "1,234,567"),
        (712.44, "712.4"),
        (0.00123, "0.00123"),
        (12.3456, "12.35"),
        (4e20, "4.000e+20"),
    ],
)
def test_numbers_have_sensible_precision(value: float | None, words: str) -> None:
    """Four digits that say something, and no more than six behind the point."""
    assert figure(value) == words


def test_bounds_in_signs() -> None:
    """Open at either end, closed, one value, or none."""
    assert bounds([1, None]) == "≥ 1"
    assert bounds([None, 2.5]) == "≤ 2.5"
    assert bounds([1, 2]) == "1 to 2"
    assert bounds([0, 0]) == "= 0"
    assert bounds([None, None]) == bounds(None) == bounds(["a", {}]) == ""


def test_bins_keep_every_byte() -> None:
    """Wider bins and bins that do not align hold the same sum."""
    values = list(range(100))
    assert Grid(0.01, 100).sums(values, 0.01).tolist() == pytest.approx(values)
    assert Grid(0.025, 40).sums(values, 0.01).sum() == pytest.approx(sum(values))
    assert Grid(0.01, 10, skipped=50).sums(values, 0.01).tolist() == pytest.approx(values[50:60])
    assert Grid(0.02, 50).mbps({"bin_ms": 10, "bytes": [12_500] * 100}).tolist() == pytest.approx(
        [10.0] * 50
    )


def test_counters_are_counted_per_bin() -> None:
    """A running total becomes what each bin added, and nothing is lost between samples."""
    samples = {"at_s": [0.005, 0.015, None, 0.031], "lost": [2, 5, 5, 9]}
    assert Grid(0.01, 4).counted(samples, "lost").tolist() == [2, 3, 0, 4]
    assert Grid(0.01, 4).counted(samples, "absent").tolist() == [0, 0, 0, 0]


def test_what_nobody_counted_is_not_said_to_be_none() -> None:
    """Senders without samples know nothing; the links of that run do."""
    report = sample_report.black_hole()
    (run,) = report["runs"]
    grid = grid_of([run])
    assert list(events_per_bin(grid, run))[3:] == [
        *("retransmitted", "spurious", "timeouts", "probes")
    ]
    run["flows"][0]["samples"] = {}
    assert list(events_per_bin(grid, run)) == ["dropped", "trimmed", "marked"]
    run["links"] = []
    assert events_per_bin(grid, run) == {}


def test_long_runs_get_wider_bins() -> None:
    """As many bins as a picture can show, and the run's own where it is enlarged."""
    runs = [{"duration_s": 100, "flows": [{"goodput": {"bin_ms": 10, "bytes": [1] * 10_000}}]}]
    assert grid_of(runs).width_s == pytest.approx(0.1)
    assert grid_of(runs).count == 1000
    assert bins_around((1.0, 1.5), runs) == Grid(0.01, 50, 100)
    assert grid_of([{}]) == Grid(0.01, 100)


def test_states_and_faults_without_an_end_last() -> None:
    """What nobody ended goes on to the end of the run."""
    path = {"changes": [{"at_s": 2, "state": "assumed_bad"}]}
    assert list(states(path, 5.0)) == [("good", 0.0, 2.0), ("assumed_bad", 2.0, 5.0)]
    run = {"faults": [{"at_s": -1, "what": "x"}, {"what": "no time"}]}
    assert fault_spans(run, 5.0) == [(0.0, 5.0, "x")]


def test_rare_peaks_do_not_decide_the_scale() -> None:
    """A burst of one bin is cut; what is often reached is not."""
    steady = np.full(100, 500.0)
    assert scale_of([steady]) == 500
    assert scale_of([np.append(steady, 3000.0)]) == pytest.approx(650)
    assert scale_of([np.append(steady, np.full(20, 3000.0))]) == 3000
    assert scale_of([]) == 0


def test_how_fast_a_plane_was_left() -> None:
    """First and last EV after the fault, if half of those in use went; backups do not count."""

    def path(at_s: float | None, sent: int = 1) -> Report:
        changes = [] if at_s is None else [{"at_s": at_s, "state": "assumed_bad"}]
        return {"sent": sent, "changes": changes}

    assert abandoned([path(2.01), path(2.03)], 2.0, 5.0) == pytest.approx((2, 10, 30))
    assert abandoned([path(2.01), path(None), path(None)], 2.0, 5.0) is None
    assert abandoned([path(2.01), path(None), path(None, sent=0)], 2.0, 5.0) is not None
    assert abandoned([path(1.9), path(5.1)], 2.0, 5.0) is None


def test_what_happens_after_the_bins_is_not_drawn_as_nothing() -> None:
    """The time axis ends with the bins, though the last messages are complete a little later."""
    flow = {"goodput": {"bin_ms": 10, "bytes": [1] * 800}}
    run = {"duration_s": 8.0, "flows": [flow | {"completions": {"at_s": [9], "took_ms": [1]}}]}
    assert grid_of([run]).end_s == pytest.approx(8.0)
