#!/usr/bin/env python3
"""Usage: check_page.py ROOT BUILD [--screenshots FOLDER]. Drives the page that `./run web` made (ROOT/build-web/site) in Debian's
Chromium, by playwright, and compares its figures with those of BUILD/smplan and BUILD/smsim, to the last digit.

Exit code 77, with the reason, where the page, Chromium, playwright or the tools are missing. Playwright is looked for in this
Python, in ROOT/build-web/playwright, which `./run web --test` makes, and in the build's own environment."""

import functools
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

QUESTION = ["--target", "p4d.24xlarge", "--nodes", "4", "--model", "llama-2-7b"]
# Llama 2's own shape under another name (meta-llama/Llama-2-7b-hf): a small one of two layers, so that its plan is found at once.
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
          "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 2, "vocab_size": 32000,
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu"}
FIGURES = ["step_time_s", "samples_per_s", "mfu", "peak_memory_gib"]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def playwright_or_skip(root, build):
    try:
        from playwright.sync_api import sync_playwright
        return sync_playwright
    except ImportError:
        for other in (root / "build-web" / "playwright" / "bin" / "python", build / "python-environment" / "bin" / "python"):
            has_it = other.exists() and subprocess.run([other, "-c", "import playwright"], capture_output=True, check=False).returncode == 0
            if has_it:
                os.execv(other, [str(other), *sys.argv])
        return skip("playwright is not installed: ./run web --test makes an environment with it")


def answer_of(tool, *arguments, cwd=None):
    done = subprocess.run([tool, *arguments, "--json"], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, f"{tool} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}/index.html"


class Watched:
    """A page whose console errors and requests to other places are failures."""

    def __init__(self, browser, address, **context):
        self.home = address.rsplit("/", 1)[0]
        self.mistakes = []
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(240_000)
        self.page.on("console", lambda line: line.type in ("error", "warning") and self.mistakes.append(f"console: {line.text}"))
        self.page.on("pageerror", lambda error: self.mistakes.append(f"page: {error}"))
        self.page.on("request", self.check_request)
        self.page.goto(address)
        self.page.wait_for_selector("#plan:enabled")

    def check_request(self, request):
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.mistakes.append(f"asks {request.url}")
        if request.method != "GET" or request.post_data:
            self.mistakes.append(f"sends to {request.url}")

    def done(self):
        assert not self.mistakes, self.mistakes
        self.context.close()


def shown_rows(page):
    return page.evaluate("""() => [...document.querySelectorAll('#plans tbody tr')].map((row) =>
        Object.fromEntries([...row.querySelectorAll('data')].map((figure) => [figure.dataset.key, figure.value])))""")


def same_text(value):
    """The shortest text that reads back as the figure, as JavaScript writes numbers: compared as a number, bit for bit."""
    return float(value).hex()


def check_plans(page, expected):
    rows = shown_rows(page)
    assert len(rows) == len(expected["plans"]), (len(rows), len(expected["plans"]))
    for shown, plan in zip(rows, expected["plans"]):
        for key in FIGURES:
            assert same_text(shown[key]) == same_text(plan[key]), (plan["rank"], key, shown[key], plan[key])


def check_plan_a(page, tools, folder):
    """The scenario that the page gives away, simulated by smsim, has the figures that the page's charts have."""
    page.wait_for_function("document.getElementById('plan-a').dataset.shown !== undefined")
    scenario = page.locator("#scenario").inner_text()
    path = pathlib.Path(folder) / "plan_of_page.toml"
    path.write_text(scenario + "\n")
    prediction = answer_of(f"{tools}/smsim", path.name, cwd=folder)
    shown = dict(page.evaluate("""() => [...document.querySelectorAll('#memory svg [data-key], #breakdown svg [data-key]')].map(
        (mark) => [mark.dataset.key, mark.dataset.value])"""))
    peaks = page.evaluate("""() => [...document.querySelectorAll('#memory svg [data-key="peak_gib"]')].map((mark) => mark.dataset.value)""")
    assert [same_text(peak) for peak in peaks] == [same_text(rank["peak_gib"]) for rank in prediction["memory"]], peaks
    assert same_text(shown["available_memory_gib"]) == same_text(prediction["available_memory_gib"])
    causes = {key: value for key, value in shown.items() if key.startswith("breakdown_s.")}
    assert causes, "no cause of the step is shown"
    for key, value in causes.items():
        assert same_text(value) == same_text(prediction["breakdown_s"][key.split(".")[1]]), (key, value)
    return prediction


def check_layout(page, width):
    """Nothing is cut off at the side: what is wider scrolls inside itself, and the table of plans is never wider."""
    beyond = page.evaluate("() => { const at = document.getElementById('plans')?.parentElement; return at ? at.scrollWidth - at.clientWidth : 0; }")
    assert width > 900 or beyond <= 0, f"at {width} pixels the table of plans is {beyond} pixels wider than its place"
    over = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0, f"at {width} pixels the page is {over} pixels wider than the window"


def check_ticks(page):
    """Each tick of the scatter says something else than the one beside it."""
    axes = page.evaluate("() => [...document.querySelectorAll('#scatter .axis')].map((axis) => [...axis.querySelectorAll('text')].map((t) => t.textContent))")
    assert len(axes) == 2, axes
    for ticks in axes:
        assert len(ticks) > 1 and len(set(ticks)) == len(ticks), ticks


def press_until(page, selector, key="Tab", most=200):
    for _ in range(most):
        if page.evaluate("(selector) => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{selector} is not reached by {key}")


def by_keyboard_alone(watched, expected):
    """Asks, picks plan B and comes to the last button without a pointer."""
    page = watched.page
    press_until(page, "#model")
    press_until(page, "#instance")
    assert page.input_value("#instance") == "p4d.24xlarge"
    press_until(page, "#nodes")
    page.keyboard.press("Control+a")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    page.wait_for_selector("#plans tbody tr")
    assert page.evaluate("document.activeElement.id") == "answer", "the answer takes the focus"
    check_plans(page, expected)
    press_until(page, "input[name=pick-b]")
    before = page.evaluate("document.querySelector('input[name=pick-b]:checked').value")
    page.keyboard.press("ArrowDown")
    after = page.evaluate("document.querySelector('input[name=pick-b]:checked').value")
    assert before != after, "an arrow moves plan B"
    page.wait_for_function(f"document.getElementById('ab').dataset.shown === '0 {after}'")
    press_until(page, "#take button")
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style != "none", "what has the focus is seen to have it"


def check_contrast(page, scheme):
    """Text against ground of the page, by WCAG 2.1: at least 4.5."""
    ratio = page.evaluate("""() => {
        const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map((c) => (c /= 255) <= 0.03928 ? c / 12.92
            : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const body = getComputedStyle(document.body), note = getComputedStyle(document.querySelector('.note'));
        const against = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        return Math.min(against(light(body.color), light(body.backgroundColor)), against(light(note.color), light(body.backgroundColor)));
    }""")
    assert ratio >= 4.5, f"{scheme}: contrast {ratio:.2f}"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, dark[4:-1].split(","))) < 200) == (scheme == "dark"), f"{scheme}: ground {dark}"


def drop_config(watched, tools, folder):
    page = watched.page
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(CONFIG))
    page.evaluate("""(text) => {
        const data = new DataTransfer();
        data.items.add(new File([text], 'config.json', {type: 'application/json'}));
        document.getElementById('drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    }""", json.dumps(CONFIG))
    page.wait_for_selector("#model:disabled")
    page.fill("#nodes", "1")
    page.fill("#batch", "64")
    page.click("#plan")
    page.wait_for_selector("#plans tbody tr")
    expected = answer_of(f"{tools}/smplan", "--target", "p4d.24xlarge", "--nodes", "1", "--model", "config.json", "--global-batch", "64",
                         cwd=folder)
    check_plans(page, expected)
    check_plan_a(page, tools, folder)
    assert "--model config.json" in page.locator("#command").inner_text()


def refuse_onnx_and_nonsense(watched):
    page = watched.page
    page.set_input_files("#model-file", files=[{"name": "net.onnx", "mimeType": "application/octet-stream", "buffer": b"\x08\x07"}])
    assert "smplan --model net.onnx" in page.locator("#file-note").inner_text()
    # Options are read before there is a model to look for.
    for model, further, expected in [("llama-2-7b", "--tp 3,x", "--tp = 'x'"), ("llama-2-7bb", "", "did you mean")]:
        page.fill("#model", model)
        page.fill("#further", further)
        page.click("#plan")
        page.wait_for_function("text => document.getElementById('errors').innerText.includes(text)", arg=expected)
        assert page.locator("#errors").is_visible()


def stop_a_search(watched):
    page = watched.page
    page.fill("#model", "llama-3.1-405b")
    page.select_option("#instance", "p5.48xlarge")
    page.fill("#nodes", "256")
    page.fill("#further", "--time-limit 3600")
    page.click("#plan")
    page.wait_for_function("document.getElementById('state').textContent.includes('plans looked at')")
    begun = time.monotonic()
    page.click("#stop")
    page.wait_for_selector("#plan:enabled")
    assert time.monotonic() - begun < 5, "a search that is given up ends at once"
    page.fill("#model", "bert-large")
    page.fill("#nodes", "1")
    page.fill("#further", "")
    page.click("#plan")
    page.wait_for_selector("#plans tbody tr")


def main():
    root, tools = (pathlib.Path(argument).absolute() for argument in sys.argv[1:3])
    shots = pathlib.Path(sys.argv[sys.argv.index("--screenshots") + 1]) if "--screenshots" in sys.argv else None
    site = root / "build-web" / "site"
    if not (site / "index.html").exists():
        skip("there is no page: ./run web makes it")
    rooms = "core model cluster schedule sim interop planner jobs api web hardware_profiles framework_profiles".split()
    kinds = {".cpp", ".h", ".js", ".css", ".html", ".toml"}
    made = (site / "smsim.wasm").stat().st_mtime if (site / "smsim.wasm").exists() else (site / "index.html").stat().st_mtime
    if any(file.stat().st_mtime > made for room in rooms for file in (root / room).rglob("*") if file.suffix in kinds):
        skip("the page is older than its sources: ./run web makes it anew")
    for tool in ("smplan", "smsim"):
        if not (tools / tool).exists():
            skip(f"{tools / tool} is not built")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        skip("chromium is not installed")
    sync_playwright = playwright_or_skip(root, tools)

    expected = answer_of(f"{tools}/smplan", *QUESTION)
    server, address = serve(site)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        views = [(width, scheme) for width in (1400, 400) for scheme in ("light", "dark")]
        for index, (width, scheme) in enumerate(views):
            # Once as a file, without a server.
            watched = Watched(browser, (site / "index.html").resolve().as_uri() if index == 1 else address,
                              viewport={"width": width, "height": 1000}, color_scheme=scheme)
            check_layout(watched.page, width)
            by_keyboard_alone(watched, expected)
            check_plan_a(watched.page, tools, folder)
            check_layout(watched.page, width)
            check_ticks(watched.page)
            check_contrast(watched.page, scheme)
            if shots:
                watched.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
                watched.page.wait_for_timeout(300)
                watched.page.screenshot(path=shots / f"page_{width}_{scheme}.png", full_page=True)
            watched.done()
            print(f"{width} pixels, {scheme}: {len(expected['plans'])} plans to the last digit, by keyboard alone")
        for name, step in [("a dropped config.json is planned", lambda w: drop_config(w, tools, folder)),
                           ("ONNX and mistakes are told", refuse_onnx_and_nonsense), ("a search can be stopped", stop_a_search)]:
            watched = Watched(browser, address, viewport={"width": 1400, "height": 1000})
            step(watched)
            watched.done()
            print(name)
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
