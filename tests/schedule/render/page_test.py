"""The HTML timeline in a headless browser.

PIPEWRIGHT_BIN names the program; CHROMIUM names the browser where it is not `chromium` on PATH.
"""

import json
import os
import re
import shutil
import subprocess

import pytest
from playwright.sync_api import sync_playwright

COMPARED = ["GPipe", "1F1B", "ZBVZeroBubble", "DualPipeV"]
SIZE = ["--ranks", "4", "--microbatches", "8", "--format", "html"]
PART = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)(\d+)")
COMMUNICATION = re.compile(r"SEND|RECV|SHARD|REDUCE_GRAD")
WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


# ---- the pages ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def single(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "single.html"
    subprocess.run([program, "show", "ZBVZeroBubble", *SIZE, "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def compared(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "compared.html"
    with path.open("wb") as out:
        subprocess.run([program, "compare", *COMPARED, *SIZE], check=True, stdout=out)
    return path


@pytest.fixture(scope="session")
def browser():
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        pytest.fail("no browser: set CHROMIUM or put chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a page; when the test ends, it must have logged nothing and fetched nothing else."""
    contexts, complaints = [], []

    def visit(path, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        contexts.append(context)
        page, url = context.new_page(), path.as_uri()
        page.on("console", lambda m: complaints.append(f"console {m.type}: {m.text}"))
        page.on("pageerror", lambda e: complaints.append(f"error: {e}"))
        page.on("request", lambda r: r.url == url or complaints.append(f"request: {r.url}"))
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def with_data(path, text, target):
    html = path.read_text()
    opening = '<script type="application/json" id="data">'
    start = html.index(opening) + len(opening)
    target.write_text(html[:start] + text + html[html.index("</script>", start):])
    return target


@pytest.fixture
def hung(single, tmp_path):
    """A part of a run: rank 0 still waits, rank 1 waited and still runs."""
    ranks = [
        {"actions": [["0F0", 0, 30]], "waits": [["0B0", 30, 120, "0B0 has waited 31 s", True]]},
        {"actions": [["1F0", 50, 120]], "waits": [["1F0", 0, 50, "1F0 waited", False]], "unfinished": [0]},
    ]
    run = {"name": "Step 3", "label": "in ms", "source": "recorded", "stage_to_rank": [0, 1], "ranks": ranks}
    return with_data(single, json.dumps({"title": "hung", "runs": [run]}), tmp_path / "hung.html")


# ---- what the data says ------------------------------------------------------------------------


def data_of(page):
    return page.evaluate("JSON.parse(document.getElementById('data').textContent)")


def is_compute(action):
    return "OVERLAP" in action[0] or not COMMUNICATION.search(action[0])


def compute_actions(run):
    return [(rank, index, action) for rank, lane in enumerate(run["ranks"])
            for index, action in enumerate(lane["actions"]) if is_compute(action)]


def parts_of(action):
    """(kind, stage, microbatch, text, start, end) of each part; none for whole-stage actions."""
    found = list(PART.finditer(action[0]))
    spans = action[3] if len(action) > 3 else [action[1:3]] * len(found)
    return [(m[2], int(m[1]), int(m[3]), m[0], *span) for m, span in zip(found, spans)]


def needs_of(run, action):
    """{text: end} of what the action depends on, as far as the run holds it."""
    held = {}
    for lane in run["ranks"]:
        for other in lane["actions"]:
            for kind, stage, microbatch, text, _, end in parts_of(other):
                held["B" if kind == "I" else kind, stage, microbatch] = (text, end)
    wanted = {"F": [("F", -1), ("RECV_F", 0)], "W": [("B", 0)], "SEND_F": [("F", 0)], "SEND_B": [("B", 0)],
              "RECV_F": [("SEND_F", -1)], "RECV_B": [("SEND_B", 1)]}
    wanted["B"] = wanted["I"] = [("B", 1), ("F", 0), ("RECV_B", 0)]
    keys = [(other, stage + offset, microbatch) for kind, stage, microbatch, *_ in parts_of(action)
            for other, offset in wanted[kind]]
    return dict(held[key] for key in keys if key in held)


# ---- what the page shows -----------------------------------------------------------------------


def wait_drawn(page):
    """What each run shows, once all are up to date; read in one go, before anything can redraw."""
    done = """() => { const all = pipewright.drawn;
      return all.every((drawn, i) => drawn || !pipewright.runs[i].shown) && all; }"""
    return page.wait_for_function(done).json_value()


def view_of(page):
    view = page.evaluate("({...pipewright.view})")
    return view["t0"], view["t1"]


def rect_of(page, run, rank, index):
    return page.evaluate("a => pipewright.rectOf(...a)", [run, rank, index])


def pixels(page, run=0):
    wait_drawn(page)
    return page.evaluate("i => pipewright.runs[i].canvas.toDataURL()", run)


def hover(page, run, rank, index):
    page.evaluate("i => pipewright.runs[i].section.scrollIntoView()", run)
    page.wait_for_timeout(50)
    rect = rect_of(page, run, rank, index)
    page.mouse.move(rect["x"] + rect["w"] / 2, rect["y"] + rect["h"] / 2)
    page.wait_for_selector("#tip:not([hidden])")
    names, values = (page.locator(f"#tip {tag}").all_inner_texts() for tag in ("dt", "dd"))
    rows, name = {}, None
    for label, value in zip(names, values):
        name = label or name
        rows.setdefault(name, []).append(value)
    return page.locator("#tip b").inner_text(), rows


def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def lane_middle(page, run=0):
    rank, index, _ = compute_actions(data_of(page)["runs"][run])[0]
    rect = rect_of(page, run, rank, index)
    return rect["y"] + rect["h"] / 2


# ---- tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["single", "compared"])
def test_summary_has_a_row_per_run(which, request, visit):
    page = visit(request.getfixturevalue(which))
    data = data_of(page)
    rows = page.locator("tbody tr")
    assert page.title() == data["title"] == page.locator("header h1").inner_text()
    assert rows.count() == len(data["runs"]) == (1 if which == "single" else len(COMPARED))
    for row, run in zip(rows.all(), data["runs"]):
        cells = row.locator("td").all_inner_texts()
        assert cells[1:3] == [run["name"], run["label"]]
        peak = max(rank["peak_activation"] for rank in run["ranks"])
        for cell, value in zip(cells[3:8], [run["makespan"], run["ideal"], 100 * run["bubble_rate_makespan"],
                                            100 * run["bubble_rate_span"], peak]):
            assert numbers(cell) == [pytest.approx(value, abs=0.051 if "%" in cell else 1e-3)]


@pytest.mark.parametrize("which", ["single", "compared"])
def test_every_compute_action_is_a_box(which, request, visit):
    page = visit(request.getfixturevalue(which))
    for run, drawn in zip(data_of(page)["runs"], wait_drawn(page)):
        assert (drawn["boxes"], drawn["merged"]) == (len(compute_actions(run)), 0)


def test_hit_test_finds_every_action_and_no_idle_time(compared, visit):
    page = visit(compared)
    for index, run in enumerate(data_of(page)["runs"]):
        probes = [[index, rank, (a[1] + a[2]) / 2] for rank, _, a in compute_actions(run)]
        found = page.evaluate("all => all.map(a => pipewright.hitTest(...a)?.text)", probes)
        assert found == [a[0] for _, _, a in compute_actions(run)]
        assert page.evaluate("a => pipewright.hitTest(...a)", [index, 0, run["makespan"] + 1]) is None


def test_wheel_zooms_around_the_pointer(single, visit):
    page = visit(single)
    wait_drawn(page)
    fitted, x, y = view_of(page), 500, lane_middle(page)
    left, right = page.evaluate("[pipewright.view.t0, pipewright.view.t1].map(t => pipewright.xOf(0, t))")
    time_at = lambda view: view[0] + (x - left) / (right - left) * (view[1] - view[0])
    page.mouse.move(x, y)
    page.mouse.wheel(0, -200)
    page.wait_for_function("t1 => pipewright.view.t1 < t1", arg=fitted[1])
    zoomed = view_of(page)
    assert zoomed[1] - zoomed[0] < 0.8 * (fitted[1] - fitted[0])
    assert time_at(zoomed) == pytest.approx(time_at(fitted))
    for _ in range(5):
        page.mouse.wheel(0, 400)
    page.wait_for_timeout(100)
    assert view_of(page) == pytest.approx(fitted)


def test_zooming_in_stops(single, visit):
    page = visit(single)
    for _ in range(60):
        page.keyboard.press("+")
    t0, t1 = view_of(page)
    shortest = min(a[2] - a[1] for lane in data_of(page)["runs"][0]["ranks"] for a in lane["actions"] if a[2] > a[1])
    assert t1 - t0 == pytest.approx(shortest)


def test_drag_pans(single, visit):
    page = visit(single)
    page.keyboard.press("+")
    page.keyboard.press("+")
    before, y = view_of(page), lane_middle(page)
    left, right = page.evaluate("[pipewright.view.t0, pipewright.view.t1].map(t => pipewright.xOf(0, t))")
    page.mouse.move(700, y)
    page.mouse.down()
    page.mouse.move(600, y, steps=4)
    page.mouse.up()
    shift = 100 / (right - left) * (before[1] - before[0])
    assert view_of(page) == pytest.approx((before[0] + shift, before[1] + shift))


def test_keys_and_fit_button(single, visit):
    page = visit(single)
    fitted = view_of(page)
    page.keyboard.press("+")
    zoomed = view_of(page)
    assert zoomed[1] - zoomed[0] < fitted[1] - fitted[0]
    page.keyboard.press("ArrowRight")
    assert view_of(page)[0] > zoomed[0]
    page.keyboard.press("ArrowLeft")
    assert view_of(page) == pytest.approx(zoomed)
    page.keyboard.press("0")
    assert view_of(page) == pytest.approx(fitted)
    page.click("#in")
    assert view_of(page) != pytest.approx(fitted)
    page.click("#fit")
    assert view_of(page) == pytest.approx(fitted)


def samples(run):
    """One action of each sort the run holds, away from the ends of the pipeline where it can be."""
    chosen = {}
    for rank, lane in enumerate(run["ranks"]):
        for index, action in enumerate(lane["actions"]):
            parts = parts_of(action)
            sort = "OVERLAP" if len(parts) > 1 else parts[0][0] if parts else None
            if sort and len(needs_of(run, action)) > len(chosen.get(sort, [{}])[0]):
                chosen[sort] = (needs_of(run, action), rank, index, action)
    return chosen


@pytest.mark.parametrize("which", ["single", "compared"])
def test_tooltip_gives_times_and_dependencies(which, request, visit):
    page = visit(request.getfixturevalue(which))
    wait_drawn(page)
    seen = set()
    for run_index, run in enumerate(data_of(page)["runs"]):
        for sort, (needs, rank, index, action) in samples(run).items():
            seen.add(sort)
            title, rows = hover(page, run_index, rank, index)
            if is_compute(action):
                assert title.startswith(action[0] + ": ")
                assert page.evaluate("pipewright.hovered.index") == index
                for kind, stage, microbatch, *_ in parts_of(action):
                    assert f"{WORDS[kind]} of microbatch {microbatch} on stage {stage}" in title
            elif not title.startswith(action[0] + ": "):
                continue   # marks of zero width can lie on top of one another
            times = [action[1], action[2], action[2] - action[1]]
            assert numbers(rows[f"rank {rank}"][0]) == pytest.approx(times, abs=1e-3)
            waited = {text.split()[0]: numbers(text)[-1] for text in rows["waited for"]}
            assert waited == pytest.approx(needs, abs=1e-3)
    assert {"F", "I", "W"} <= seen
    assert which == "single" or {"B", "OVERLAP"} <= seen


def test_tooltip_names_what_waits(single, visit):
    page = visit(single)
    wait_drawn(page)
    run = data_of(page)["runs"][0]
    rank, index, action = next(c for c in compute_actions(run) if c[2][0] == "2F1")
    _, rows = hover(page, 0, rank, index)
    starts = {a[0]: a[1] for lane in run["ranks"] for a in lane["actions"]}
    waiting = {text.split()[0]: numbers(text)[-1] for text in rows["waits for it"]}
    assert "3F1" in waiting and waiting.keys() & {"2I1", "2B1"}
    assert waiting == pytest.approx({text: starts[text] for text in waiting}, abs=1e-3)


def test_hover_draws_lines_and_leaving_clears_them(single, visit):
    page = visit(single)
    wait_drawn(page)
    run = data_of(page)["runs"][0]
    rank, index, _ = next(c for c in compute_actions(run) if c[2][0] == "2F1")
    hover(page, 0, rank, index)
    page.wait_for_selector("#overlay:not([hidden])")
    painted = """() => { const c = document.getElementById("overlay");
      return c.getContext("2d").getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v).length; }"""
    assert page.evaluate(painted) > 100
    page.mouse.move(640, 20)
    page.wait_for_selector("#tip", state="hidden")
    page.wait_for_selector("#overlay", state="hidden")


def test_memory_toggle(single, visit):
    page = visit(single)
    with_curves = pixels(page)
    ranks = data_of(page)["runs"][0]["ranks"]
    assert wait_drawn(page)[0]["curves"] == len(ranks)
    page.uncheck("#memory")
    assert pixels(page) != with_curves
    assert wait_drawn(page)[0]["curves"] == 0
    page.check("#memory")
    assert pixels(page) == with_curves


def test_memory_tooltip_gives_the_peak(single, visit):
    page = visit(single)
    wait_drawn(page)
    run = data_of(page)["runs"][0]
    base = page.evaluate("""() => { const { canvas, layout } = pipewright.runs[0];
      return canvas.getBoundingClientRect().top + layout.pitch; }""")
    page.mouse.move(page.evaluate("t => pipewright.xOf(0, t)", run["makespan"] / 2), base - 6)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip b").inner_text() == "Memory of rank 0"
    peak = numbers(page.locator("#tip dd").nth(1).inner_text())[0]
    assert peak == pytest.approx(max(value for _, value in run["ranks"][0]["memory"]), abs=1e-3)


def test_critical_path_toggle(single, visit):
    page = visit(single)
    plain = pixels(page)
    assert wait_drawn(page)[0]["critical"] == 0
    page.check("#critical")
    assert pixels(page) != plain
    path = data_of(page)["runs"][0]["critical_path"]
    assert len(path) > 0 and wait_drawn(page)[0]["critical"] == len(path)
    page.uncheck("#critical")
    assert pixels(page) == plain


def test_communication_toggle(single, visit):
    page = visit(single)
    actions = [a for lane in data_of(page)["runs"][0]["ranks"] for a in lane["actions"]]
    marks = sum(not is_compute(a) for a in actions)
    assert 0 < wait_drawn(page)[0]["comm"] <= marks if marks else wait_drawn(page)[0]["comm"] == 0
    page.uncheck("#comm")
    assert wait_drawn(page)[0]["comm"] == 0


@pytest.mark.parametrize("zoomed", [False, True])
def test_runs_share_one_time_axis(compared, visit, zoomed):
    page = visit(compared)
    if zoomed:
        page.keyboard.press("+")
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
    wait_drawn(page)
    for t in [0, 1.5, 7]:
        assert len(set(page.evaluate("t => pipewright.runs.map((_, i) => pipewright.xOf(i, t))", t))) == 1
    # The first box of the last rank must begin on the canvas where the axis says it does.
    around = """([i, rank, t]) => {
      const { canvas, layout } = pipewright.runs[i], x = pipewright.xOf(i, t) - canvas.getBoundingClientRect().left;
      const row = canvas.getContext("2d").getImageData(x - 3, layout.pitch * rank + 8, 7, 1).data;
      return [[...row.slice(0, 4)], [...row.slice(-4)]]; }"""
    for i, run in enumerate(data_of(page)["runs"]):
        last = len(run["ranks"]) - 1
        start = min(a[1] for a in run["ranks"][last]["actions"] if is_compute(a))
        before, after = page.evaluate(around, [i, last, start])
        assert before != after


def test_hiding_and_showing_a_run(compared, visit):
    page = visit(compared)
    wait_drawn(page)
    second = page.locator("section").nth(1)
    box = page.locator("tbody tr").nth(1).locator("input")
    box.uncheck()
    assert second.is_hidden() and not page.evaluate("pipewright.runs[1].shown")
    assert page.locator("section:visible").count() == len(COMPARED) - 1
    box.check()
    assert second.is_visible()
    assert wait_drawn(page)[1]["boxes"] == len(compute_actions(data_of(page)["runs"][1]))


def test_clicking_a_row_scrolls_to_its_run(compared, visit):
    page = visit(compared)
    wait_drawn(page)
    page.locator("tbody tr").last.locator("td.name").click()
    page.wait_for_function("scrollY > 0")
    heading = page.locator("section h2").last.bounding_box()
    assert 0 < heading["y"] < 800


def colours_at(page, places):
    """The colours in a square at each (rank, time), inside the lane; of one look at the canvas."""
    squares = """places => {
      const { canvas, layout } = pipewright.runs[0], { left } = canvas.getBoundingClientRect();
      const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), side = [...Array(16).keys()];
      return places.map(([rank, t]) => side.flatMap(dy => side.map(dx => {
        const at = 4 * ((8 + layout.pitch * rank + dy) * canvas.width + Math.round(pipewright.xOf(0, t) - left) + dx);
        return [...image.data.slice(at, at + 3)]; }))); }"""
    return [set(map(tuple, square)) for square in page.evaluate(squares, places)]


def test_waits_are_hatched(hung, visit):
    page = visit(hung)
    drawn = wait_drawn(page)[0]
    assert (drawn["waits"], drawn["boxes"]) == (2, 2)
    still, waited, box = colours_at(page, [(0, 40), (1, 10), (0, 5)])
    assert len(box) == 1
    assert len(still) > 1 and len(waited) > 1
    redness = lambda colours: max(red - blue for red, _, blue in colours)
    assert redness(still) > 40 > redness(waited)


def test_legend_names_waits_where_there_are_any(hung, single, visit):
    page = visit(hung)
    assert {"waited", "still waits"} <= set(page.locator("#legend span").all_inner_texts())
    assert "waited" not in visit(single).locator("#legend").inner_text()


@pytest.mark.parametrize(
    ("rank", "t", "title", "row"),
    [
        (0, 100, "0B0 has waited 31 s", "30 on"),
        (1, 20, "1F0 waited", "0 to 50"),
        (1, 80, "1F0: forward of microbatch 0 on stage 1", "start 50, still runs"),
    ],
)
def test_tooltip_of_a_hang(rank, t, title, row, hung, visit):
    page = visit(hung)
    wait_drawn(page)
    y = page.evaluate("""rank => { const { canvas, layout } = pipewright.runs[0];
      return canvas.getBoundingClientRect().top + 4 + layout.pitch * rank + layout.box / 2; }""", rank)
    page.mouse.move(page.evaluate("t => pipewright.xOf(0, t)", t), y)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip b").inner_text() == title
    assert page.locator("#tip dd").first.inner_text() == row


def test_part_of_a_run_has_no_makespan(hung, single, visit):
    page = visit(hung)
    wait_drawn(page)
    for selector in [".summary", "#memory", "#critical"]:
        assert page.locator(selector).is_hidden()
    assert "makespan" not in page.locator("body").inner_text()
    assert view_of(page) == pytest.approx((0, 120 * 1.015))
    whole = visit(single)
    for selector in [".summary", "#memory", "#critical"]:
        assert whole.locator(selector).is_visible()


def test_rank_of_a_part_tells_nothing_false(hung, visit):
    page = visit(hung)
    wait_drawn(page)
    box = page.locator("canvas").last.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 15)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip").inner_text().split() == ["rank", "0", "Step", "3"]


def test_many_actions_are_merged_until_zoomed_in(single, visit, tmp_path):
    count = 20000
    lane = {"actions": [[f"0F{i}", i, i + 0.9] for i in range(count)], "memory": [[i, i % 2] for i in range(count)]}
    run = {"name": "long", "makespan": count, "ideal": count, "stage_to_rank": [0], "ranks": [lane]}
    page = visit(with_data(single, json.dumps({"title": "long", "runs": [run]}), tmp_path / "long.html"))
    drawn = wait_drawn(page)[0]
    assert (drawn["boxes"], drawn["merged"]) == (0, count)
    for _ in range(20):
        page.keyboard.press("+")
    drawn = wait_drawn(page)[0]
    t0, t1 = view_of(page)
    assert drawn["merged"] == 0 and drawn["boxes"] == pytest.approx(t1 - t0, abs=2)


@pytest.mark.parametrize("data", [
    "", "{", "null", "{}", '{"runs": []}', '{"runs": [{"name": "a"}]}', '{"runs": [{"ranks": [{"actions": [null]}]}]}',
    '{"runs": [{"ranks": [{"actions": [["0X0", 0, 1]]}]}]}', '{"runs": [{"ranks": [{"actions": [["0F0", 1, 0]]}]}]}',
])
def test_bad_data_gives_a_message(single, visit, tmp_path, data):
    page = visit(with_data(single, data, tmp_path / "bad.html"))
    assert "cannot be drawn" in page.locator("#message").inner_text()
    assert page.locator("#page").is_hidden()


def test_names_are_text_not_markup(single, visit, tmp_path):
    name = "<img src=x onerror=alert(1)>"
    run = {"name": name, "label": name, "makespan": 1, "ideal": 1, "ranks": [{"actions": [["0F0", 0, 1]]}]}
    text = json.dumps({"title": name, "runs": [run]}).replace("</", "<\\/")
    page = visit(with_data(single, text, tmp_path / "names.html"))
    assert page.locator("tbody td.name").inner_text() == name
    assert page.locator("img").count() == 0


def test_dark_scheme_follows_the_reader(single, visit):
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(single, color_scheme="light"), visit(single, color_scheme="dark")
    assert light.evaluate(background) != dark.evaluate(background)
    assert pixels(light) != pixels(dark)
    light.emulate_media(color_scheme="dark")
    light.wait_for_timeout(200)
    assert pixels(light) == pixels(dark)
