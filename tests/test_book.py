"""The built book, page by page, in a real browser that cannot look up any name: what a reader without network sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas
import plotly
import pytest
import yaml

pytest.importorskip("IPython")
import nbformat
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
from nbformat.v4 import new_markdown_cell
from toy_book import FIGURE, SOURCE, lay_out, shown, write_notebook

from hypatia_lab import paths, tables
from hypatia_lab.book import build
from hypatia_lab.figures import Figure, axes, language, mark_rows, marks, plots
from hypatia_lab.pages import by_machine
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.records import Record

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE_MS = 120_000
"""So long a page may take to open: tests share two cores."""
FLAGS = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-gpu"]
"""Beside those by which playwright has the browser ask for nothing of its own accord."""
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1300, "height": 900}
NARROW = {"width": 1100, "height": 800}
"""A window in which the theme has no margin on the right yet."""


def _chapters() -> list[str]:
    toc = yaml.safe_load((paths.HOME / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


PAGES = [*(f"{name}.html" for name in _chapters()), "search.html", "genindex.html"]

LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8").partition("*/")[2].strip().rstrip(";")


@dataclass
class Seen:
    """One page as the browser saw it."""

    url: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    look: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium without name look-ups; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (looked for chromium, chromium-browser, google-chrome, chrome)")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'"
    )
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        opened = chromium.new_page

        def patient(**how: Any) -> Any:
            page = opened(**how)
            page.set_default_timeout(PATIENCE_MS)
            return page

        chromium.new_page = patient
        yield chromium
        chromium.close()


Visit = Callable[..., Seen]


@pytest.fixture(scope="module")
def visit(browser: Any) -> Visit:
    """A way to open a page from disk, wait until it has settled, and note all that happened.

    A window of a kind goes from page to page: a new one for each takes twice as long.
    """
    windows: dict[tuple[int, str], tuple[Any, list[Seen]]] = {}

    def opened(viewport: dict[str, int], scheme: str) -> tuple[Any, list[Seen]]:
        page, visits = browser.new_page(viewport=viewport, color_scheme=scheme), [Seen("about:blank")]
        page.on("console", lambda told: visits[-1].console.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: visits[-1].console.append(str(error)))
        page.on("request", lambda request: visits[-1].requests.append(request.url))
        page.on("requestfailed", lambda request: visits[-1].failed.append(request.url))
        return page, visits

    def go(path: Path, viewport: dict[str, int] = DESK, scheme: str = "light") -> Seen:
        kind = viewport["width"], scheme
        page, visits = windows[kind] = windows.get(kind) or opened(viewport, scheme)
        seen = Seen(path.as_uri())
        visits.append(seen)
        page.goto(seen.url)
        page.wait_for_load_state("load")
        seen.look = page.evaluate(LOOK)
        return seen

    return go


def faults(seen: Seen, root: Path) -> list[str]:
    """Everything that is wrong with a page, in words; ``root`` is the folder of the book."""
    look, here = seen.look, root.resolve().as_uri() + "/"
    told = {
        "console:": seen.console,
        "asks for": [url for url in seen.requests if not url.startswith((here, "data:", "blob:"))],
        "cannot load": seen.failed,
        "missing image": look["broken"],
        "image without alt text": look["unlabelled"],
        "math not typeset:": look["mathErrors"],
        "dead link": [url for url in look["links"] if dead(url, root)],
    }
    out = [f"{what} {one[:120]}" for what, own in told.items() for one in own]
    if look["typeset"] != look["math"]:
        out.append(f"{look['math'] - look['typeset']} of {look['math']} formulae not typeset")
    if look["skipped"] or look["plots"] != len(look["figures"]):
        out.append(f"{len(look['figures'])} figures, {look['plots']} plots")
    if look["faint"]:
        out.append(f"{len(look['faint'])} texts too faint on their ground, such as {look['faint'][0]!r}")
    if look["wide"] > 1:
        out.append(f"the page is {look['wide']} px wider than the window")
    for number, figure in enumerate(look["figures"], 1):
        if min(figure["size"]) < 100 or not 0 < figure["traces"] <= figure["drawn"]:
            out.append(f"figure {number} is not drawn: {figure}")
        if figure["role"] != "img" or len(figure["alt"]) < 20:
            out.append(f"figure {number} has no alt text to speak of: {figure['alt']!r}")
    out += [f"rows of marks are not drawn: {rows}" for rows in look["marked"] if rows["narrowest"] < 40]
    for drawn in (*look["figures"], *look["marked"]):
        if not drawn["rows"]:
            out.append(f"no data table in the cell of {drawn}")
        if not drawn["records"]:
            out.append(f"no link to a record in the cell of {drawn}")
        out += [f"text is cut off: {text!r}" for text in drawn["cut"]]
    return out


def dead(url: str, root: Path) -> bool:
    """Whether a link inside the book leads nowhere: no such file, or no such place in it."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return False
    target = Path(unquote(parts.path))
    if not target.is_file() or root.resolve() not in target.resolve().parents:
        return True
    text = target.read_text(encoding="utf-8", errors="replace") if target.suffix == ".html" else ""
    return bool(parts.fragment) and f'id="{unquote(parts.fragment)}"' not in text


@pytest.fixture(scope="module")
def pages(visit: Visit, committed_book: Path) -> dict[str, Seen]:
    """Every page of the committed book, seen once."""
    return {name: visit(committed_book / name) for name in PAGES if (committed_book / name).is_file()}


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole_offline(name: str, pages: dict[str, Seen], committed_book: Path) -> None:
    assert name in pages, f"{name} was not built"
    assert faults(pages[name], committed_book) == []


@pytest.mark.browser
def test_every_built_page_is_looked_at(pages: dict[str, Seen], committed_book: Path) -> None:
    built = {str(path.relative_to(committed_book)) for path in committed_book.rglob("*.html")}
    assert {page for page in built if not page.startswith(("_static/", "_sources/"))} == {*PAGES, "index.html"}
    assert all(pages[name].look["heading"] for name in PAGES if name.startswith(("notebooks/", "book/")))


@pytest.mark.browser
def test_index_leads_to_the_front_page(browser: Any, committed_book: Path) -> None:
    with browser.new_page() as page:
        page.goto((committed_book / "index.html").as_uri())
        page.wait_for_url((committed_book / PAGES[0]).resolve().as_uri(), timeout=10_000)


@pytest.mark.browser
def test_every_stored_figure_and_formula_reaches_the_page(pages: dict[str, Seen]) -> None:
    for name in filter(lambda name: (paths.HOME / f"{name}.ipynb").is_file(), _chapters()):
        cells = nbformat.read(paths.HOME / f"{name}.ipynb", as_version=4).cells
        outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
        drawn = [data[build.PLOTLY_MIME] for data in outputs if build.PLOTLY_MIME in data]
        plots = sum(len(one["layout"]["meta"].get("tiles", "1")) for one in drawn)
        marked = sum("lab-rows" in "".join(data.get("text/html", "")) for data in outputs)
        look = pages[f"{name}.html"].look
        assert (len(look["figures"]), len(look["marked"])) == (plots, marked), name
    assert sum(len(seen.look["figures"]) for seen in pages.values()) > 0
    assert sum(seen.look["math"] for seen in pages.values()) > 0


READ_ALOUD = ("notebooks/02_naive_vs_cublas.html", "book/references.html", "search.html")
"""A page of each kind; what a screen reader meets takes ten seconds a page to look through."""


@pytest.mark.browser
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in READ_ALOUD else [pytest.mark.slow]) for name in PAGES]
)
def test_a_screen_reader_meets_nothing_serious(name: str, browser: Any, committed_book: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    with browser.new_page(viewport=DESK) as page:
        page.goto((committed_book / name).as_uri())
        page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    assert [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in grave] == []


ON_A_PHONE = [name for name in PAGES if name.startswith(("notebooks/", "book/"))]


# A page takes two seconds: every second one is left to the slow tests.
@pytest.mark.browser
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(place % 2)) for place, name in enumerate(ON_A_PHONE)]
)
def test_page_fits_a_phone_in_the_dark(name: str, visit: Visit, pages: dict[str, Seen], committed_book: Path) -> None:
    dark = visit(committed_book / name, PHONE, "dark")
    assert faults(dark, committed_book) == []
    for light, figure in zip(pages[name].look["figures"], dark.look["figures"], strict=True):
        assert figure["size"][0] <= PHONE["width"]
        assert _brightness(light["colour"]) < 128 < _brightness(figure["colour"])


@pytest.mark.browser
def test_wide_cells_fit_a_window_without_a_margin(browser: Any, committed_book: Path) -> None:
    wide = [path for path in sorted(committed_book.glob("notebooks/*.html")) if "tag_full-width" in path.read_text()]
    assert wide
    with browser.new_page(viewport=NARROW, java_script_enabled=False) as page:  # style decides; figures take seconds
        for path in wide:
            page.goto(path.as_uri())
            root = "document.documentElement"
            assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 1, path.name


LONG = "a name that is longer than what a telephone has room for beside anything else"


def _figures() -> list[Figure]:
    """Rows of five panels, bars, and tiles, all with long names."""
    names = [f"{LONG} {number}" for number in range(5)]
    look, table = language.style("eager", "peer"), pandas.DataFrame({"x": [1.0, 2.0]})
    cell = mark_rows.Cell(LONG, "", look, (1.0, 0.5, 2.0), "said", "1.00× [0.50, 2.00], undecided")
    axis = axes.log_axis([0.1, 10.0], LONG)
    rows = [replace(cell, panel=panel) for panel in names]
    bar = replace(cell, segments=[mark_rows.Segment(0, 3, (language.BLUE, "/"), LONG)])
    key = [(marks.swatch(language.BLUE, "/"), name) for name in names]
    trace = plots.points_trace(look, [(1.0, 0.5, 2.0)], [1.0], ["said"], along="y")
    data = [trace | plots.tile(number) for number in range(5)]
    return [
        mark_rows.draw([mark_rows.Block(LONG, rows, axis)], LONG, names, table, ["x"]),
        mark_rows.draw(mark_rows.bars({LONG: [bar]}, LONG, axes.plain), LONG, names, table, ["x"], key),
        plots.plotted(data, plots.tiles(names, axis, axis), LONG, names, table, ["x"], key),
    ]


@pytest.mark.browser
def test_figures_fit_a_telephone_and_a_desk(browser: Any, tmp_path: Path) -> None:
    static = paths.HOME / "book" / "static"
    body = ""
    for output in (output for figure in _figures() for output in figure.outputs()):
        plot = output.get(build.PLOTLY_MIME)
        body += build.figure_html(plot, output["text/plain"]) if plot else output["text/html"]
    scripts = [Path(plotly.__file__).parent / "package_data" / "plotly.min.js", static / "figures.js"]
    head = "".join(f'<script defer src="{path.as_uri()}"></script>' for path in scripts)
    head += f'<link rel="stylesheet" href="{(static / "book.css").as_uri()}">'
    path = tmp_path / "page.html"
    path.write_text(f'<!doctype html><head><meta charset="utf-8">{head}</head><body class="bd-article">{body}</body>')
    beside = []
    for width in (360, 1300):
        with browser.new_page(viewport={"width": width, "height": 800}) as page:
            page.goto(path.as_uri())
            look = page.evaluate(LOOK)
            tops = "[...document.querySelectorAll('%s')].map(box => box.getBoundingClientRect().top)"
            chosen = (".lab-tiles > div", "tbody tr:first-child td")
            beside.append([len(set(page.evaluate(tops % one))) for one in chosen])
        assert look["wide"] <= 1, width
        assert [figure["drawn"] for figure in look["figures"]] == [1] * 5
        assert [figure["cut"] for figure in [*look["figures"], *look["marked"]]] == [[]] * 7
        assert all(rows["narrowest"] >= 40 for rows in look["marked"])
    (tiles, cells), (wide_tiles, wide_cells) = beside
    assert tiles == 5 > wide_tiles
    assert cells > wide_cells, "marks wrap where there is no room"


def _brightness(colour: str) -> float:
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(numbers) / 3


@pytest.mark.browser
def test_search_and_theme_switch_work_offline(browser: Any, committed_book: Path) -> None:
    pages = sorted(committed_book.glob("notebooks/*.html"))
    with browser.new_page(viewport=DESK) as page:
        page.goto((committed_book / "search.html").as_uri() + "?q=measured")
        page.wait_for_selector("#search-results li a", timeout=10_000)
        page.goto(next(path for path in pages if "lab-figure" in path.read_text("utf-8")).as_uri())
        page.evaluate(LOOK)
        colour = "getComputedStyle(document.querySelector('.lab-plot svg text')).fill"
        before = page.evaluate(colour)
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.wait_for_function(f"{colour} !== {json.dumps(before)}", timeout=10_000)


def test_plotly_is_loaded_only_where_there_is_a_figure(committed_book: Path) -> None:
    for path in [*committed_book.glob("notebooks/*.html"), *committed_book.glob("book/*.html")]:
        text = path.read_text(encoding="utf-8")
        assert ("plotly.min.js" in text) == ("lab-figure" in text), path.name


# A small book of its own, to see that the checks above can fail.


TABS = ("01_tabs", "02_tabs")
"""The pages with tabs."""


def tabbed() -> Any:
    """A cell whose loop displays of each of two machines a figure with its data, and a folded table."""
    run = {"device": "cpu", "experiment": "method", "facts": {"name": "Chip"}, "started": "2026-11-21T10:00:00Z"}
    found = [Record(Path(), run | {"machine": name}, (), "") for name in ("one", "two")]
    table = pandas.DataFrame({"x": range(4), "kind": ["odd", "even"] * 2})
    InteractiveShell.instance()
    with capture_output() as caught:
        for name in by_machine.tabs(Evidence(found, [])):
            display({build.PLOTLY_MIME: FIGURE}, {"text/html": SOURCE}, raw=True)
            tables.show(table, filterable=True, summary=f"Every cell of {name}")
    InteractiveShell.clear_instance()
    return shown(*(output.data for output in caught.outputs))


@pytest.fixture(scope="module")
def toy_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a repository's book, with two more pages of which each has two tab sets."""
    folder = tmp_path_factory.mktemp("toy")
    repository = lay_out(folder / "repository")
    with (repository / "_toc.yml").open("a", encoding="utf-8") as contents:
        contents.write("chapters:\n" + "".join(f"- file: notebooks/{name}\n" for name in TABS))
    for name in TABS:
        write_notebook(repository / "notebooks" / f"{name}.ipynb", new_markdown_cell("# Tabs"), tabbed(), tabbed())
    return build.build(output=folder / "html", repository=repository).parent


@pytest.mark.browser
def test_filterable_tables_filter(browser: Any, toy_book: Path) -> None:
    rows = "[...document.querySelectorAll('.filterable tbody tr')]"
    visible = f"{rows}.filter(row => row.offsetHeight).map(row => row.cells[0].innerText)"
    with browser.new_page(viewport=DESK) as page:
        page.goto((toy_book / "notebooks" / "00_toy.html").as_uri())
        assert not page.locator(".filterable").is_visible()
        page.click("summary")
        assert page.evaluate(visible) == ["1", "2", "3", "4"]
        page.select_option(".lab-filter select", "odd")
        assert page.evaluate(visible) == ["1", "3"]
        page.fill(".lab-filter input", "3")
        assert page.evaluate(visible) == ["3"]
        assert page.inner_text(".lab-filter output") == "1 of 4 rows"


# One machine at a time.


SEEN = (
    "[...document.querySelectorAll('.lab-fold')].filter("
    "fold => getComputedStyle(fold).visibility === 'visible' && fold.getBoundingClientRect().height"
    ").map(fold => fold.querySelector('summary').textContent.split(' ')[3])"
)
"""The machines whose folded tables are seen, in order."""
DRAWN = "[...document.querySelectorAll('.lab-plot')].map(plot => !!plot.querySelector('.trace'))"
BELOW = "document.querySelector('.cell_output').parentElement.getBoundingClientRect().height"


@pytest.mark.browser
@pytest.mark.parametrize(("viewport", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_one_machine_is_seen_at_a_time_on_all_pages(
    browser: Any, toy_book: Path, viewport: dict[str, int], scheme: str
) -> None:
    first, second = ((toy_book / "notebooks" / f"{name}.html").as_uri() for name in TABS)
    page = browser.new_page(viewport=viewport, color_scheme=scheme)
    page.goto(first)
    page.wait_for_function(f"{DRAWN}.join() === 'true,false,true,false'")  # the other's figures wait
    assert page.evaluate(SEEN) == ["one", "one"]
    one = page.evaluate(BELOW)
    assert page.locator(".lab-tabs:visible").count() == 1  # one bar a page
    page.locator(".lab-tabs label", has_text="two").first.click()
    assert page.evaluate(SEEN) == ["two", "two"]
    page.wait_for_function(f"{DRAWN}.every(Boolean)")
    assert page.evaluate(BELOW) == pytest.approx(one, abs=20)  # what is not chosen takes no room but for margins
    for _ in range(20):  # what one page stores reaches the process of another a moment later
        page.goto(second)
        if page.evaluate(SEEN) == ["two", "two"]:
            break
    page.wait_for_function(f"{DRAWN}.join() === 'false,true,false,true'")
    page.focus(".lab-tabs input:checked")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(SEEN) == ["one", "one"]
    page.emulate_media(media="print")
    assert page.evaluate(SEEN) == ["one", "one"]
    assert not page.is_visible(".lab-tabs")
    assert page.locator(".lab-panel:visible").count() == 2  # on paper the machine's name
    page.close()


@pytest.mark.browser
def test_tabs_need_no_script(browser: Any, toy_book: Path) -> None:
    with browser.new_page(viewport=DESK, java_script_enabled=False) as page:
        page.goto((toy_book / "notebooks" / f"{TABS[0]}.html").as_uri())
        assert page.evaluate(SEEN) == ["one", "one"]
        page.locator(".lab-tabs label", has_text="two").first.click()
        assert page.evaluate(SEEN) == ["two", "one"]


@pytest.mark.browser
def test_tabs_show_one_machine_in_a_notebook_as_jupyterlab_lays_it_out(browser: Any) -> None:
    child = '<div class="jp-OutputArea-child"><div class="jp-OutputArea-output">{}</div></div>'
    outputs = [child.format(output.data.get("text/html", "a figure")) for output in tabbed().outputs]
    with browser.new_page(viewport=DESK, java_script_enabled=False) as page:
        page.set_content(f'<div class="jp-OutputArea">{"".join(outputs)}</div>')
        assert page.evaluate(SEEN) == ["one"]
        page.check("input[value=two]")
        assert page.evaluate(SEEN) == ["two"]


@pytest.mark.browser
def test_the_checks_can_fail(visit: Visit, toy_book: Path, tmp_path: Path) -> None:
    root = shutil.copytree(toy_book, tmp_path / "html")
    page = root / "notebooks" / "00_toy.html"
    whole = page.read_text(encoding="utf-8")
    assert faults(visit(page), root) == []
    alt, table = FIGURE["layout"]["meta"]["alt"], whole[whole.index("<table") : whole.index("</table>") + 8]
    end = "</article>"
    planted: list[dict[str, tuple[str, str]]] = [
        {
            "missing image": (end, f'<img alt="" src="nowhere.png">{end}'),
            "image without alt text": (end, f'<img src="../_static/file.png">{end}'),
            "asks for https://example.org": (end, f'<img alt="" src="https://example.org/a.png">{end}'),
            "console: planted": (end, f"<script>console.error('planted')</script>{end}"),
            "console: thrown": (end, f"<script>throw Error('thrown')</script>{end}"),
            "dead link": (end, f'<a href="#nowhere">x</a>{end}'),
            "no alt text": (f'{alt}" style', '" style'),
            "no link to a record": ('<a href="../records/toy/method/2025-01-01-cpu.jsonl">record</a>', ""),
            "no data table": (table, ""),
            "math not typeset": ("x^2", r"\frac{1}"),
            "1 figures, 2 plots": (end, f'<div class="js-plotly-plot"></div>{end}'),
            "too faint": (end, f'<p style="color:#777;background:#888">faint</p>{end}'),
            "wider than the window": (end, f'<div style="width:3000px">x</div>{end}'),
            "text is cut off": ('"layout":{', '"layout":{"title":{"text":"' + "long title " * 40 + '"},'),
        },
        {
            "dead link": ("../records/toy/method/2025-01-01-cpu.jsonl", "../records/toy/method/gone.jsonl"),
            "formulae not typeset": ("mathjax/tex-mml-chtml.js", "mathjax/gone.js"),
            "is not drawn": ("figures.js", "gone.js"),
        },
    ]
    for together in planted:
        text = whole
        for name, (old, new) in together.items():
            assert old in text, name
            text = text.replace(old, new)
        page.write_text(text, encoding="utf-8")
        found = faults(visit(page), root)
        assert [name for name in together if not any(name in fault for fault in found)] == [], found


@pytest.mark.browser
def test_a_page_gives_its_notebook_and_all_of_its_code(browser: Any, committed_book: Path) -> None:
    with browser.new_page(viewport=DESK) as page:
        page.goto((committed_book / "notebooks" / "04_gemm_ladder.html").as_uri())
        page.click(".dropdown-download-buttons > button")
        source = committed_book / "notebooks" / page.get_attribute(".btn-download-source-button", "href")
        folded, visible = (page.locator(f"details.above-input pre{state}") for state in ("", ":visible"))
        assert visible.count() == 0
        page.click(".btn-unfold-button")
        assert visible.count() == folded.count()
        seen = {text.strip() for text in page.locator(".cell_input pre").all_inner_texts()}
    shown = [cell for cell in nbformat.read(source, 4).cells if cell.cell_type == "code" and cell.outputs]
    assert {cell.source.strip() for cell in shown if "remove-input" not in cell.metadata["tags"]} <= seen
