#!/usr/bin/env python3
"""Usage: check_pages.py BUILD SOURCE [--can-fail] [--keep FOLDER]. Opens the report page of every tool in Chromium, from file://.

Figures that a page shows are those of the JSON that the tool prints; the console stays empty; at 1400 and 400 pixels, light and dark,
nothing is wider than the window; the timeline is searched by keyboard alone and redrawn within 50 ms; names are no markup. Exit code 77
where playwright or a browser is missing. --can-fail: a page with one figure changed, and one whose script throws, must be found.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LONGEST_REDRAW_MS = 50
LARGEST_PAGE_WITHOUT_DATA = 1_000_000
ELEMENT = re.compile(r'(<script type="application/json" id="data">)(.*?)(</script>)', re.S)


def find_playwright(build):
    """This interpreter where it has playwright, else that of the build's environment."""
    if importlib.util.find_spec("playwright"):
        return
    python = pathlib.Path(build, "python-environment/bin/python")
    has_it = python.exists() and subprocess.run([python, "-c", "import playwright"], capture_output=True).returncode == 0
    if not has_it or os.environ.get("SMSIM_PAGES_REEXEC"):
        print("skipped: playwright is not installed (pip install playwright)")
        sys.exit(77)
    os.environ["SMSIM_PAGES_REEXEC"] = "1"
    os.execv(python, [str(python), *sys.argv])


def find_browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    print("skipped: Chromium is not installed")
    sys.exit(77)


class Checks:
    def __init__(self):
        self.failures = []
        self.done = 0

    def expect(self, holds, what):
        self.done += 1
        if not holds:
            self.failures.append(what)


def run(command, expected=(0,)):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in expected:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def make_pages(build, source, folder):
    """Pages by name: (path, answer, a name that the timeline knows or None)."""
    tool = lambda name: str(pathlib.Path(build, name))
    scenario = lambda name: str(pathlib.Path(source, "scenarios", name))
    asked = {
        "step": [tool("smsim"), scenario("llama2_70b_p4d.toml")],
        "plans": [tool("smplan"), "--target", "p4d.24xlarge", "--nodes", "2", "--model", "bert-large", "--global-batch", "256"],
        "job": [tool("smsim"), "job", scenario("job_llama3_405b.toml"), "--set", "job.simulation.runs=200"],
        "execution": [tool("smexec"), scenario("cpu_gpt_pipeline2.toml"), "--steps", "4"],
        "validation": [tool("smsim"), "validate", str(pathlib.Path(source, "tests/report/measured.csv")), "--clusters",
                       str(pathlib.Path(source, "tests/report/clusters.csv"))],
    }
    pages = {}
    for name, command in asked.items():
        path = pathlib.Path(folder, f"{name}.html")
        pages[name] = (path, json.loads(run([*command, "--html", str(path), "--json"])))
    return pages


def value_at(answer, key):
    for part in key.split("."):
        answer = answer.get(part) if isinstance(answer, dict) else None
    return answer


def check_figures(page, name, answer, checks):
    """Every figure that says which key it shows has that key's value, and cards are not empty."""
    shown = page.eval_on_selector_all(
        ".cards [data-key], .bar-figure[data-key], .limit[data-key]",
        "all => all.map(e => [e.dataset.key, e.dataset.value, e.textContent])")
    checks.expect(len(shown) >= 3, f"{name}: only {len(shown)} figures are shown")
    told = 0
    for key, value, text in shown:
        expected = value_at(answer, key)
        if isinstance(expected, (int, float)) and not isinstance(expected, bool):
            told += 1
            checks.expect(float(value) == expected, f"{name}: {key} is {expected} in the JSON, {value} in the page")
        checks.expect(text.strip() != "" and "NaN" not in text and "undefined" not in text, f"{name}: {key} is shown as {text!r}")
    checks.expect(told >= {"plans": 0, "validation": 2}.get(name, 3), f"{name}: only {told} figures of the JSON are shown")
    if name == "plans":
        cells = page.eval_on_selector_all("#plans td[data-key=step_time_s]", "all => all.map(e => Number(e.dataset.value))")
        checks.expect(cells == [plan["step_time_s"] for plan in answer["plans"]], "plans: step times of the table are not the JSON's")
    if name == "validation":
        points = page.eval_on_selector_all("circle.point", "all => all.length")
        good = sum(row["status"] == "ok" for row in answer["rows"])
        checks.expect(points == good, f"validation: {points} points, {good} rows are predicted")


def check_one_peak(page, answer, checks):
    """The card, the bars, the capacity line and the timeline say one peak."""
    peak, available = answer["peak_memory_gib"], answer["available_memory_gib"]
    bars = page.eval_on_selector_all("#memory .bar-figure", "all => all.map(e => Number(e.dataset.value))")
    checks.expect(max(bars) == peak, f"step: the longest bar is {max(bars)}, the peak {peak}")
    note = page.inner_text("#memory figcaption")
    for figure in (peak, available):
        checks.expect(f"{figure:,.2f} GiB" in note, f"step: {figure:.2f} is not in {note!r}")
    data = page.evaluate("JSON.parse(document.getElementById('data').textContent).timeline.ranks.map(r => r.peak_gib)")
    checks.expect(abs(max(data) - peak) < 1e-9 * peak, f"step: the timeline's peak is {max(data)}, the table's {peak}")


def check_timeline(page, name, word, checks):
    """Search, jumps and zoom by keyboard alone; short redraws."""
    page.keyboard.press("Home")
    page.focus(".timeline input[type=search]")
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    page.wait_for_timeout(120)
    said = page.inner_text(".timeline-said")
    checks.expect(re.match(r"1 of [\d,]+: ", said) is not None, f"{name}: the search for {word!r} says {said!r}")
    page.keyboard.press("Enter")
    page.wait_for_timeout(120)
    checks.expect(page.inner_text(".timeline-said").startswith("2 of "), f"{name}: a second Enter does not go on")
    page.fill(".timeline input[type=search]", "no operator is called so")
    page.wait_for_timeout(60)
    checks.expect("No slice" in page.inner_text(".timeline-said"), f"{name}: a search without matches is not told")
    page.fill(".timeline input[type=search]", "")
    canvas = page.locator(".timeline-canvas")
    canvas.focus()
    windows = lambda: json.loads(canvas.get_attribute("data-windows"))
    page.keyboard.press("0")
    page.wait_for_timeout(80)
    whole = windows()
    checks.expect(len(whole) == 1 and whole[0][0] == 0, f"{name}: 0 does not show the whole step: {whole}")
    page.keyboard.press("+")
    page.wait_for_timeout(80)
    nearer = windows()
    checks.expect(nearer[0][1] - nearer[0][0] < 0.7 * (whole[0][1] - whole[0][0]), f"{name}: + does not zoom")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(80)
    checks.expect(windows()[0][0] > nearer[0][0], f"{name}: an arrow does not move")
    # Of each view the least of several: what else this machine does is not the page's time.
    times = {}
    for key in ("0", "+", "ArrowRight", "-", "ArrowLeft") * 4:
        page.keyboard.press(key)
        page.wait_for_timeout(60)
        times[key] = min(times.get(key, 1e9), float(canvas.get_attribute("data-draw-ms")))
    if os.environ.get("SMSIM_PAGES_TIMES"):
        print(f"{name}: redraws of {times} ms")
    checks.expect(max(times.values()) < LONGEST_REDRAW_MS, f"{name}: redraws take {times} ms")


def check_page(browser, name, path, answer, checks, shots=None):
    text = path.read_text()
    without = len(text.encode()) - len(ELEMENT.search(text).group(2).encode())
    checks.expect(without < LARGEST_PAGE_WITHOUT_DATA, f"{name}: {without} bytes without its data")
    for scheme in ("light", "dark"):
        for width in (1400, 400):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            said = []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: request.url.startswith("file:") or said.append(f"asks {request.url}"))
            page.goto(path.as_uri())
            page.wait_for_timeout(250)
            checks.expect(said == [], f"{name}, {scheme}, {width}: the console says {said}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            checks.expect(wide <= width, f"{name}, {scheme}, {width}: {wide} pixels wide")
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            light = sum(map(int, re.findall(r"\d+", ground)[:3])) > 380
            checks.expect(light == (scheme == "light"), f"{name}: the ground is {ground} where {scheme} is wanted")
            if shots:
                page.screenshot(path=str(pathlib.Path(shots, f"{name}_{scheme}_{width}.png")), full_page=True)
            if said == []:
                check_figures(page, f"{name}", answer, checks)
                if scheme == "light" and width == 1400:
                    if name == "step":
                        check_one_peak(page, answer, checks)
                        check_timeline(page, name, "layers.3.", checks)
                    if name == "execution":
                        check_timeline(page, name, "forward", checks)
                    unnamed = page.eval_on_selector_all(
                        "button, input, [role=img], [role=application]",
                        "all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).length")
                    checks.expect(unnamed == 0, f"{name}: {unnamed} controls have no name")
            page.close()


def changed(path, folder, change):
    text = path.read_text()
    head, data, tail = ELEMENT.search(text).groups()
    report = json.loads(data)
    change(report)
    other = pathlib.Path(folder, f"changed_{path.name}")
    found = ELEMENT.search(text)
    other.write_text(text[: found.start()] + head + json.dumps(report).replace("<", "\\u003c") + tail + text[found.end():])
    return other


def check_hostile(browser, path, folder, checks):
    """A page whose names are markup shows them as text."""
    name = "</script><img src=x onerror=\"window.hit = 1\"><script>window.hit = 1</script>"

    def rename(report):
        report["title"] = name
        report["answer"]["assumptions"] = [name]
        report["timeline"]["names"] = [name] * len(report["timeline"]["names"])
        report["timeline"]["ranks"][0]["name"] = name

    page = browser.new_page()
    page.goto(changed(path, folder, rename).as_uri())
    page.wait_for_timeout(300)
    checks.expect(page.evaluate("window.hit") is None, "a name was run as script")
    checks.expect(page.eval_on_selector_all("img", "all => all.length") == 0, "a name was taken for markup")
    checks.expect(page.inner_text("h1") == name, "a name is not shown as it is")
    page.close()


def can_fail(browser, pages, folder):
    path, answer = pages["step"]
    for what, change in (
        ("another figure", lambda report: report["answer"].update(step_time_s=report["answer"]["step_time_s"] * 1.001)),
        ("a script that throws", lambda report: report["answer"].update(memory=[None])),
    ):
        checks = Checks()
        check_page(browser, "step", changed(path, folder, change), answer, checks)
        if not checks.failures:
            sys.exit(f"{what} was not found")
        print(f"found {what}: {checks.failures[0]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("source")
    parser.add_argument("--can-fail", action="store_true")
    parser.add_argument("--keep")
    given = parser.parse_args()
    find_playwright(given.build)
    program = find_browser()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        if given.keep:
            os.makedirs(given.keep, exist_ok=True)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pages = make_pages(given.build, given.source, given.keep or folder)
        if given.can_fail:
            can_fail(browser, pages, folder)
            return
        checks = Checks()
        for name, (path, answer) in pages.items():
            check_page(browser, name, path, answer, checks, given.keep)
        check_hostile(browser, pages["step"][0], folder, checks)
        browser.close()
    for failure in checks.failures:
        print(failure)
    print(f"{checks.done} checks, {len(checks.failures)} failed")
    sys.exit(1 if checks.failures else 0)


main()
