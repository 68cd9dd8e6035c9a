"""The report page in a real browser: opened from a file, without a network, wide and narrow."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.unit.endpoints import endpoint

TOOL = Path(__file__).resolve().parents[2] / "ocr" / "ocr-endpoint-bench.py"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed (Debian: apt install chromium)")


def tool(*words):
    return subprocess.run(list(map(str, [sys.executable, TOOL, *words])), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two report pages: one of a run, and one that compares it with a run on another page and hostile names."""
    folder = tmp_path_factory.mktemp("report")
    Image.new("RGB", (280, 392), "white").save(folder / "page.png")
    with endpoint() as good, endpoint("loop") as bad:
        tool("run", folder / "page.png", "--task", "text", "--concurrency", "1,2", "--repeat", "2",
             "--out", folder / "run",
             "--target", f"glm-ocr={good.url},model=tiny", "--target", f"dots-mocr={bad.url},model=tiny",
             "--target", "qwen3-vl-ocr=http://127.0.0.1:9/v1")  # fmt: skip
    report = json.loads((folder / "run" / "report.json").read_text())
    other = copy.deepcopy(report)
    other["run_id"], other["input"]["pages_sha256"] = "<script>document.title = 'hacked'</script>", "other"
    other["targets"][0]["label"] = "<img src=x onerror=\"document.title='hacked'\">" + "W" * 200
    other["targets"][0]["runs"][0] |= {"outcome": "bad_response", "error": "x" * 400 + "</td><script>alert(1)</script>"}
    (folder / "other.json").write_text(json.dumps(other))
    tool("page", folder / "run" / "report.json", folder / "other.json", "--out", folder / "both.html")
    return {"run": folder / "run" / "report.html", "both": folder / "both.html"}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("name", ["run", "both"])
@pytest.mark.parametrize("width", [1200, 375])
def test_the_page_opens_offline_and_fits(browser, pages, name, width, tmp_path):
    page = browser.new_page(viewport={"width": width, "height": 800})
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(pages[name].as_uri(), timeout=60_000)
    assert asked == [pages[name].as_uri()] and said == []
    assert page.title().startswith("OCR endpoints, text")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page itself never scrolls sideways"
    charts = page.query_selector_all("svg")
    assert len(charts) == 3 and all(chart.bounding_box()["height"] > 40 for chart in charts)
    assert page.query_selector("svg rect[fill='#d35400']").bounding_box()["width"] > 20, "the loops are in the chart"
    heads = page.query_selector("table").query_selector_all("th")
    assert width < 1000 or name == "both" or heads[-1].bounding_box()["x"] < width, (
        "a long reason leaves the figures in view"
    )
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000
    page.close()


def test_the_page_tells_what_happened(browser, pages):
    page = browser.new_page()
    page.goto(pages["run"].as_uri(), timeout=60_000)
    text = page.inner_text("body")
    assert "the answer repeats itself" in text and "nobody answers GET /models" in text
    rows = [row.inner_text() for row in page.query_selector("table").query_selector_all("tbody tr")]
    assert len(rows) == 5 and "not ready" in rows[4] and "2 of 2" in rows[0] and "0 of 2" in rows[2]
    assert not page.is_visible("details table")
    page.click("details summary")
    assert page.is_visible("details table")
    page.close()


def test_a_comparison_says_what_makes_it_none(browser, pages):
    page = browser.new_page()
    page.goto(pages["both"].as_uri(), timeout=60_000)
    assert "are no comparison: they differ in the pages" in page.inner_text("[role=note]")
    assert page.query_selector("script, img") is None and "</td><script>" in page.inner_text("body")
    page.close()
