# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report page in a real browser: how it looks, that it works, holds still, requests nothing, and
runs nothing that a document says.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import socket
import sys
import time
from pathlib import Path

import node as sandbox
import pytest

from controller import ROOT, linked

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import page as _page

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium to drive a browser")
from selenium.common.exceptions import NoAlertPresentException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

import run_world  # noqa: E402

SCREENSHOTS = ROOT / ".build/screenshots"
FAULTS = dict(
    slow={("gpu07", "eth2", "transmit"): 0.33},
    loss={("eth1", "gpu02", "gpu06"): 0.2, ("eth1", "gpu06", "gpu02"): 0.2},
    dead=frozenset({"gpu05"}),
)
#: Name, width, height, colour scheme.
SCREENS = (
    ("desktop", 1280, 900, "light"),
    ("desktop-dark", 1280, 900, "dark"),
    ("phone", 390, 844, "light"),
    ("phone-dark", 390, 844, "dark"),
)


def html_of(document):
    return _page.html_of(RunReport.from_dict(document))


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, program, driver):
        options = webdriver.ChromeOptions()
        options.binary_location = program
        # The sandbox of a browser needs rights that root in a container does not have; the pages
        # are our own.
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.driver.set_page_load_timeout(60)

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def screen(self, width, height, scheme):
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def open(self, path, fragment=""):
        """Seconds until the page had loaded; the logs begin with it."""
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        began = time.monotonic()
        self.driver.get(f"{Path(path).as_uri()}{fragment}")
        return time.monotonic() - began

    def said(self):
        """What stands in the console since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def asked(self):
        """URLs that the page asked for since it was last asked."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def shifted(self):
        """The cumulative layout shift, after the whole page has been scrolled through."""
        self.run("""
            window.shifts = 0;
            window.add = function (entries) {
              entries.forEach(function (one) { window.shifts += one.value; });
            };
            window.shifting = new PerformanceObserver(list => window.add(list.getEntries()));
            window.shifting.observe({type: "layout-shift", buffered: true});
        """)
        height = self.run("return document.documentElement.scrollHeight")
        for place in [*range(0, height, max(700, height // 40)), 0]:
            self.run("window.scrollTo(0, arguments[0])", place)
            self._painted()
        return self.run("window.add(window.shifting.takeRecords()); return window.shifts")

    def _painted(self):
        """Wait until what was done before is on the screen."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));"
        )

    def keep(self, name, most=12000):
        """A picture of the page from its top, for people."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, most), "scale": 1}
        picture = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def names(self):
        """The nodes that the table shows, in its order."""
        return self.run(
            "return Array.from(document.querySelectorAll('#nodes-table tbody tr')).filter(r => "
            "!r.hidden).map(r => r.dataset.name)"
        )


@pytest.fixture(scope="module")
def browser():
    program = next(
        (
            path
            for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
            if path
        ),
        None,
    )
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip(
            f"needs {'chromium' if not program else 'chromedriver (Debian: chromium-driver)'}: "
            "not found"
        )
    running = Browser(program, driver)
    running.program = program
    yield running
    running.driver.quit()


def written(directory, document):
    """The page where the verdict leaves it, beside what it links to."""
    directory.mkdir(exist_ok=True)
    (directory / "run.json").write_text(json.dumps(document), encoding="utf-8")
    (directory / "summary.txt").write_text("the summary\n", encoding="utf-8")
    (directory / "report.html").write_text(html_of(document), encoding="utf-8")
    return directory / "report.html"


def paper(hosts=8):
    return run_world.planned(run_world.names(hosts))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return written(
        tmp_path_factory.mktemp("mixed"), run_world.document(run_world.mixed(), paper(), **FAULTS)
    )


def clipped(browser):
    """Cells of the table whose text is not all to be seen."""
    return browser.run("""
        return Array.from(document.querySelectorAll("#nodes-table td, #nodes-table th")).filter(
          one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent);
    """)


def looks_right(browser, page, name, screens=SCREENS):
    """The page on these screens: nothing in the console, nothing asked for, nothing that moves, and
    no wider than the screen.
    """
    for screen, width, height, scheme in screens:
        browser.screen(width, height, scheme)
        browser.open(page)
        assert browser.run("return document.documentElement.scrollWidth") <= width, screen
        assert clipped(browser) == [], screen
        assert browser.shifted() < 0.01, screen
        browser.keep(f"{name}-{screen}")
        assert browser.said() == [], screen
        assert [url for url in browser.asked() if not url.startswith("data:")] == [page.as_uri()], (
            screen
        )
    browser.screen(1280, 900, "light")


# ---- how it looks ----


def test_a_healthy_run(browser, tmp_path):
    page = written(
        tmp_path, run_world.document([run_world.node(name) for name in run_world.names(8)], paper())
    )
    looks_right(browser, page, "healthy")
    assert browser.driver.find_element(By.TAG_NAME, "h1").text == "\u2713 PASSED\npreflight"
    assert browser.driver.title == "passed: preflight 20261121T031200-preflight"


def test_a_mixed_run(browser, mixed):
    looks_right(browser, mixed, "mixed")
    assert browser.driver.find_element(By.TAG_NAME, "h1").text == "\u2715 FAILED\npreflight"


def stand_in_nodes(directory):
    """Inventory of stand-in nodes, one of each kind, one unreachable."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    hosts = {
        "away": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": port}
    }
    for name, scenario in (
        ("well", "healthy_8xh100"),
        ("slow", "slow_link"),
        ("worn", "remap_failure"),
        ("hung", "nvml_hangs"),
        ("bare", "no_gpu"),
    ):
        built = sandbox.build(scenario, directory / name)
        hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": built.python,
            "checks_host_root": built.root,
        }
        if name == "hung":
            hosts[name]["checks_timeout"] = 3
    variables = {"checks_list": ["gpu_count", "remapped", "pciebw"]}
    inventory = directory / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}), encoding="utf-8")
    return inventory


@pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)
def test_a_run_as_the_playbook_leaves_it(browser, tmp_path):
    """Stand-in nodes, one of each kind, one unreachable."""
    inventory = stand_in_nodes(tmp_path)
    controller = linked(tmp_path / "controller", Path(sys.executable).parent)
    done, document = controller.preflight(
        "autopilot.gpu.preflight", inventory, tmp_path, "--skip-tags", "mesh", "--forks", "6"
    )
    assert document, done.stdout
    page = next(tmp_path.glob("reports/*/run.json")).parent / "report.html"
    assert page.read_text(encoding="utf-8") == html_of(document)
    looks_right(browser, page, "playbook", [SCREENS[1], SCREENS[2]])
    check_cards(browser, document["nodes"])
    assert {"run.json", "summary.txt"} <= {path.name for path in page.parent.iterdir()}
    # The command it gives is one that Ansible understands, and is about those nodes.
    [line] = [
        line
        for line in (block.text for block in browser.all("#again pre"))
        if "--skip-tags" in line
    ]
    words = [str(inventory) if word == "hosts.yml" else word for word in shlex.split(line)]
    listed = controller.run(*words, "--list-hosts", cwd=tmp_path)
    assert listed.returncode == 0, listed.stdout
    bad = [
        node["name"] for node in document["nodes"] if node["status"] in ("fail", "unknown", "warn")
    ]
    assert sorted(re.findall(r"^ {6}(\w+)$", listed.stdout, re.M)) == sorted(bad)


def check_cards(browser, nodes):
    """Each node that is not good has a card with its first finding."""
    told = {card.get_attribute("id"): card.text for card in browser.all("details.card")}
    for node in nodes:
        if node["status"] in ("fail", "unknown", "warn"):
            card = next(
                text
                for text in told.values()
                if f" {node['name']} " in text.split("next:")[0].replace("\n", " ")
            )
            assert node["findings"][0]["message"] in card and node["status"].upper() in card


def test_a_large_run(browser, tmp_path, record_property):
    """1,000 nodes with 8 GPUs each, and a mesh of them: small enough, quick enough, and it holds
    still.
    """
    names = run_world.names(1000)
    plan = run_world.planned(names, racks=40, rounds=3, planes=1, peers=4)
    document = run_world.document(
        run_world.large(1000), plan, slow={("gpu0007", "eth1", "transmit"): 0.33}
    )
    began = time.process_time()
    page = written(tmp_path, document)
    figures = {"cpu_seconds": round(time.process_time() - began, 2), "bytes": page.stat().st_size}
    assert (
        figures["bytes"] < 1.5e6 and figures["cpu_seconds"] < 3 + 3
    )  # the documents are written too
    browser.screen(1280, 900, "light")
    figures["load_seconds"] = round(min(browser.open(page) for _time in range(2)), 2)
    figures["elements"] = browser.run("return document.getElementsByTagName('*').length")
    for name, value in figures.items():
        record_property(name, value)
    print(figures)
    assert (
        figures["load_seconds"] < 10 and figures["elements"] < 60_000
    )  # seconds of a machine that also runs other tests
    assert len(browser.names()) == 1000 and browser.names()[0] == "gpu0007"
    browser.run("document.querySelectorAll('#nodes-table th button')[1].click()")
    assert browser.names()[:3] == ["gpu0001", "gpu0002", "gpu0003"]
    looks_right(browser, page, "large", [SCREENS[0], SCREENS[3]])
    # The table scrolls in a box of its own.
    assert (
        browser.run("return document.querySelector('.nodes').getBoundingClientRect().height")
        <= 0.7 * 900 + 1
    )


# ---- that it works ----


def test_the_table_sorts(browser, mixed):
    browser.screen(1280, 900, "light")
    browser.open(mixed)
    first = browser.names()
    assert first[:4] == ["gpu02", "gpu03", "gpu05", "gpu07"] and first[4] == "gpu04"
    status, name, _verdict, finding = browser.all("#nodes-table th button")[:4]
    name.click()
    assert browser.names() == [
        "gpu01",
        "gpu02",
        "gpu03",
        "gpu04",
        "gpu05",
        "gpu06",
        "gpu07",
        "gpu08",
        "login1",
    ]
    assert [
        head.get_attribute("aria-sort") for head in browser.all("#nodes-table thead th")[:2]
    ] == [None, "ascending"]
    name.send_keys(Keys.ENTER)
    assert (
        browser.names()[0] == "login1"
        and browser.all("#nodes-table thead th")[1].get_attribute("aria-sort") == "descending"
    )
    finding.click()
    assert browser.names()[-1] == "gpu05" and "no packet" in browser.all("#nodes-table td")[-2].text
    status.click()
    assert browser.names()[:5] == first[:5]
    assert browser.said() == []


def test_the_table_filters(browser, mixed):
    browser.screen(1280, 900, "light")
    browser.open(mixed)
    words, shown = (
        browser.driver.find_element(By.ID, "filter-words"),
        browser.driver.find_element(By.ID, "filter-shown"),
    )
    assert shown.text == "9 of 9 shown"
    words.send_keys("0 GPU")
    assert "login1" not in browser.names() and shown.text == "8 of 9 shown"
    chosen = Select(browser.driver.find_element(By.ID, "filter-status"))
    chosen.select_by_value("unknown")
    assert browser.names() == ["gpu04"]
    words.clear()
    chosen.select_by_value("bad")
    assert browser.names() == ["gpu02", "gpu03", "gpu05", "gpu07", "gpu04"]
    words.send_keys("\\ ( [ nobody")
    assert browser.names() == [] and shown.text == "0 of 9 shown"


def test_links_lead_somewhere(browser, mixed):
    browser.open(mixed)
    links = [link.get_attribute("href") for link in browser.all("a")]
    inside = {link.partition("#")[2] for link in links if "#" in link}
    assert (
        len(inside) > 10
        and browser.run(
            "return arguments[0].filter(name => !document.getElementById(name))", sorted(inside)
        )
        == []
    )
    outside = {link for link in links if "#" not in link}
    assert outside == {(mixed.parent / name).as_uri() for name in ("run.json", "summary.txt")}
    # A link to a node opens it, from the table as from outside.
    browser.run("document.getElementById('node-2').open = false")
    browser.run("document.querySelector('#nodes-table a[href=\"#node-2\"]').click()")
    browser.open(mixed, "#node-2")
    assert browser.run("return document.getElementById('node-2').open")
    browser.driver.find_element(By.LINK_TEXT, "run.json").click()
    assert browser.driver.current_url.endswith("/run.json")


def test_the_keyboard_is_enough(browser, mixed):
    """Whatever can be worked or scrolled can be reached, has a name, and shows that it has the
    focus.
    """
    browser.open(mixed)
    browser.command("Accessibility.enable")
    tree = browser.command("Accessibility.getFullAXTree")["nodes"]
    worked = [
        one
        for one in tree
        if one.get("role", {}).get("value")
        in ("button", "link", "searchbox", "combobox", "region", "img", "DisclosureTriangle")
    ]
    assert (
        len(worked) > 20 and [one for one in worked if not one.get("name", {}).get("value")] == []
    )
    unreachable = browser.run("""
        return Array.from(document.querySelectorAll("*")).filter(function (one) {
          var style = getComputedStyle(one);
          return one.scrollWidth > one.clientWidth + 1 && /auto|scroll/.test(style.overflowX) && one.tabIndex < 0;
        }).map(function (one) { return one.className; });
    """)
    assert unreachable == []
    summary = browser.all("#node-0 > summary")[0]
    summary.send_keys(Keys.ENTER)
    assert not browser.run("return document.getElementById('node-0').open")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_cell_is_read_with_its_hosts(browser, mixed):
    """By a pointer, and by who hears a table: each cell has its figure, a row's and a column's
    head.
    """
    browser.open(mixed)
    bad = browser.all("table.heat td.k4")[0]
    row = bad.find_element(By.XPATH, "..")
    head = "arguments[0].closest('table').tHead.rows[0].cells[arguments[1].cellIndex]"
    heads = browser.run(f"return [arguments[0].cells[0].textContent, {head}.textContent]", row, bad)
    assert bad.get_attribute("title").startswith(f"{heads[0]} \u2192 {heads[1]}: ") and re.match(
        r"[\d.]+$", bad.get_attribute("textContent")
    )


def test_without_script_only_sorting_is_lost(browser, mixed):
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(mixed)
        assert [row.is_displayed() for row in browser.all("#nodes-table tbody tr")] == [True] * 9
        assert not browser.driver.find_element(By.ID, "filter-words").is_displayed()
        assert all(not button.is_enabled() for button in browser.all("#nodes-table th button"))
        assert "unfit" in browser.driver.find_element(By.ID, "bad").text
        assert browser.said() == []
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_it_prints(browser, mixed):
    browser.screen(1280, 900, "dark")
    browser.open(mixed)
    browser.run("document.getElementById('node-0').open = false")
    pdf = base64.b64decode(browser.command("Page.printToPDF", printBackground=False)["data"])
    assert pdf.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 20
    browser.command("Emulation.setEmulatedMedia", media="print")
    assert (
        browser.run("return getComputedStyle(document.querySelector('.nodes')).maxHeight") == "none"
    )
    browser.command("Emulation.setEmulatedMedia", media="")


# ---- hostile input ----

#: Each sets a flag in the window when it runs.
ATTACKS = [
    "<script>window.flag=1</script>",
    '"><img src=x onerror=window.flag=1>',
    "'><svg onload=window.flag=1>",
    "</script><script>window.flag=1</script>",
    "</style><script>window.flag=1</script>",
    "javascript:window.flag=1",
    '" autofocus onfocus=window.flag=1 x="',
    "--><script>alert(1)</script>",
    "\u202e</title><script>window.flag=1</script>",
    "\x00<scr\x00ipt>window.flag=1</script>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=javascript:window.flag=1'>",
    "<iframe srcdoc='<script>parent.flag=1</script>'>",
]
#: What decides how a document is read stays as it is.
_KEPT = {
    "status",
    "fit",
    "measure",
    "kind",
    "method",
    "direction",
    "unit",
    "source",
    "check",
    "action",
    "schema",
}


def attacked(value, text, key=""):
    """The document with the text in each of its strings; names are the same everywhere, so that
    matrices and links still find them.
    """
    if isinstance(value, str):
        return value if key in _KEPT or value.startswith(("pcie_", "00000000:")) else value + text
    if isinstance(value, list):
        return [attacked(one, text, key) for one in value]
    if isinstance(value, dict):
        return {
            (name + text if key in ("evidence", "versions", "pairs") else name): attacked(
                one, text, name
            )
            for name, one in value.items()
        }
    return value


def test_no_string_of_a_document_runs(browser, tmp_path):
    document = run_world.document(run_world.mixed(), paper(), **FAULTS)
    browser.screen(1280, 900, "light")
    for number, text in enumerate(["".join(ATTACKS), *ATTACKS]):
        page = written(tmp_path / str(number), attacked(document, text))
        browser.open(page)
        browser.run(
            "document.querySelectorAll('details').forEach(one => { one.open = true; }); "
            "document.querySelectorAll('th button')[1].click()"
        )
        for link in browser.all("a, summary")[:4]:
            browser.run("arguments[0].click()", link)
        browser.run(
            "document.querySelectorAll('*').forEach(one => one.dispatchEvent(new "
            "Event('mouseover')))"
        )
        assert browser.run("return window.flag") is None, text
        assert browser.said() == [], text
        assert [url for url in browser.asked() if not url.startswith(("data:", "file:"))] == [], (
            text
        )
        assert len(browser.all("script")) == 1 and not browser.all(
            "img, iframe, base, object, embed, form"
        ), text
        with pytest.raises(NoAlertPresentException):
            browser.driver.switch_to.alert.dismiss()
        assert len(browser.names()) == 9


def test_what_got_through_would_not_run(browser, mixed, tmp_path):
    """The page's policy is the second wall: markup put into it by hand does not run, and would
    without the policy.
    """
    page = mixed.read_text(encoding="utf-8")
    attack = (
        "<script>window.flag=1</script><img src=x onerror='window.flag=1'><a id=bait "
        "href='javascript:window.flag=1'>x</a>"
    )
    broken = page.replace("</h1>", f"</h1>{attack}")
    opened = tmp_path / "broken.html"
    opened.write_text(broken, encoding="utf-8")
    browser.open(opened)
    browser.run("document.getElementById('bait').click()")
    assert browser.run("return window.flag") is None
    assert any("Content Security Policy" in line for line in browser.said())
    opened.write_text(re.sub(r"<meta http-equiv.*?>", "", broken), encoding="utf-8")
    browser.open(opened)
    assert browser.run("return window.flag") == 1
