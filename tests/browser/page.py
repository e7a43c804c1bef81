"""The hub's page works in a real browser, with a real hub and real workers: `make page`.

The test has a hub that requires a token, four workers, of which one is slow, and a headless Chromium. The page asks for the
token. It shows a late worker, a stopped worker, another job with many workers, a killed worker, and that the hub is gone.
With `--pictures DIR` the test writes pictures to DIR.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from browser import Browser

RANKS, SLOW, STOPPED, KILLED = 4, 3, 1, 2
MANY, FOLDED = 18, 2
VERDICT = "document.querySelector('.verdict')?.textContent"
STATE = "document.getElementById('state').textContent"
EVENTS = "document.getElementById('events').textContent"
FIRST_ROW = "document.querySelector('section:not([hidden]) tbody tr')?.textContent"
ROWS = "document.querySelectorAll('section:not([hidden]) tbody tr').length"
OVERVIEW = "document.getElementById('overview').textContent"


def hub(programs, home, secret):
    settings = dict(os.environ, PHUB_TOKEN=secret, HOME=str(home), RUST_LOG="warn")
    command = [programs / "phub-server", "serve", "--listen", "127.0.0.1:0", "--cores", "2", "--idle", "sleep"]
    command += ["--checkpoints", home / "checkpoints", "--late-warning-s", "600"]
    process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split("://")[1].strip()


def worker(programs, secret, address, rank, job, ranks):
    """Runs a worker that pushes and pulls at the times of a neural network's trace, and pauses as long as its layers compute."""
    time_scale = (0.15 if rank == SLOW else 0.05) * ranks / RANKS
    command = [programs / "phub-probe", "--hub", address, "--rank", rank, "--workers", ranks, "--job", job]
    command += ["--compute", "resnet50", "--shrink", 50 * ranks, "--time-scale", time_scale, "--rounds", 100000]
    settings = dict(os.environ, PHUB_TOKEN=secret)
    return subprocess.Popen([str(word) for word in command], env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pid_of(process):
    """Returns the worker that the probe has started."""
    return int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def check(page, address, token, pictures):
    """Checks the page. Yields an event and its target each time that something must happen to the cluster."""

    def picture(name, width=1000, height=820, scheme="light"):
        page.window(width, height, scheme)
        wide = page.value("document.documentElement.scrollWidth")
        assert wide <= width, f"{name}: the page is {wide} wide in a window of {width}"
        if pictures:
            page.picture(pictures / f"{name}.png")

    page.window(1000, 820, "light")
    page.ask("Page.navigate", url=f"http://{address}/")
    page.until("it asks for a token", STATE, "wants a token")
    page.until("the field has the focus", "document.activeElement.id", "token")
    page.type("phub-read.*.00")
    page.press("Enter", "\r")
    page.until("a bad token is refused", "document.getElementById('refused').textContent", "not made with the hub's secret")
    page.type(token)
    page.press("Enter", "\r")
    page.until("it is live", STATE, "live")
    page.value("sessionStorage.clear()")
    page.ask("Page.navigate", url=f"http://{address}/#token={token}")
    page.until("the token is taken out of the address", "location.href", f"http://{address}/")
    page.until("it is live by the token of its address", STATE, "live")
    assert "token" not in page.value("location.href")
    page.until("the machine has its cores' work", "document.querySelectorAll('#machine [data-cpu] .work').length", "2")
    print("   ", page.until("the slow worker is named", VERDICT, "a second", f"waiting for rank {SLOW}: last in"))
    page.until("the slow worker has the first row", f"{FIRST_ROW}.slice(0, 1)", str(SLOW))
    round_of = "Number(document.querySelector('.verdict').textContent.match(/round (\\d+)/)[1])"
    before = page.value(round_of)
    page.until("it goes on by itself", f"{round_of} > {before}", "True")
    page.until("the window is full", "cards.get('resnet').job.rounds.window", "200")
    points = "document.querySelector('#jobs polyline')?.getAttribute('points').split(' ').length"
    page.until("the norms of the gradients are drawn", f"{points} >= 3", "True")
    page.until("no value is not finite", "cards.get('resnet').norms.textContent", "since the job began: 0")
    picture("page")
    picture("page-dark", scheme="dark")
    picture("page-phone", width=390, height=844, scheme="dark")
    assert "rgb(20, 20, 19)" in page.value("getComputedStyle(document.body).backgroundColor")
    page.window(1000, 820, "light")
    assert page.value("document.getElementById('links').textContent").startswith(f"{RANKS} by shm")
    colours = "new Set(document.querySelector('canvas').getContext('2d').getImageData(0, 0, 800, 72).data).size"
    assert page.value(colours) > 10, "there is a picture"

    page.value("document.activeElement.blur()")
    page.press("Tab")
    page.until("the job's own page is reached by the keyboard", "document.activeElement.tagName", "A")
    page.press("Tab")
    page.until("the picture is reached by the keyboard", "document.activeElement.tagName", "CANVAS")
    page.press("ArrowLeft")
    for _ in range(SLOW):
        page.press("ArrowDown")
    page.until("a cell is told", "document.activeElement.closest('section').querySelector('[aria-live]').textContent", f"rank {SLOW}: waited for")

    yield signal.SIGSTOP, STOPPED
    # The verdict may name two ranks, because another rank is slow anyway.
    waits = f"/has waited .* for ranks? (\\d+, )*{STOPPED}\\b/.test({VERDICT}) && {VERDICT}"
    print("   ", page.until("the stopped worker is named", waits, "has waited"))
    page.until("it has the first row, which says so", f"{FIRST_ROW}.startsWith('{STOPPED}') && {FIRST_ROW}", "awaited")
    picture("page-stopped")
    yield signal.SIGCONT, STOPPED
    page.until("it goes on", VERDICT, "a second")

    yield "another job", "many"
    page.until("a line for each job is above", OVERVIEW, "2 jobs", "resnet: ", "many: round")
    page.value("location.hash = 'job=many'")
    shown = "[...cards].filter(([, card]) => !card.section.hidden).map(([name]) => name).join()"
    page.until("one job has a page of its own", f"{shown} === 'many'", "True")
    page.until("its title is the job's verdict", "document.title", "round ")
    page.until("its ranks are folded", f"{ROWS} === {MANY - FOLDED}", "True")
    page.until("the rest is one press away", "cards.get('many').more.textContent", f"show {FOLDED} more ranks")
    picture("page-many", width=1280, height=1000)
    picture("page-wide", width=3840, height=2160)
    page.value("cards.get('many').more.click()")
    page.until("they are shown", f"{ROWS} === {MANY}", "True")
    page.value("location.hash = 'job=nosuch'")
    page.until("a job that is not here is named", OVERVIEW, "Job nosuch is not here", "The first worker makes a job")
    page.value("document.getElementById('all').click()")
    page.until("all are shown again", OVERVIEW, "2 jobs")
    page.window(1000, 820, "light")

    yield signal.SIGKILL, KILLED
    print("   ", page.until("the lost worker is named", VERDICT, "failed", f"worker {KILLED}"))
    page.until("it is told below", EVENTS, f"worker {KILLED}")
    picture("page-failed")

    yield signal.SIGTERM, None
    print("   ", page.until("the hub is gone", STATE, "the hub is gone", "SIGTERM"))
    page.until("it asks again", STATE, "does not answer")
    picture("page-gone")
    assert all(url.startswith(f"http://{address}/") for url in page.requested()), page.requested()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--browser", required=True)
    parser.add_argument("--pictures", type=pathlib.Path)
    args = parser.parse_args()
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    secret = "a-secret-of-a-test-that-is-long-enough"
    command = [args.programs / "phub-server", "token", "--right", "read"]
    token = subprocess.check_output(command, env=dict(os.environ, PHUB_TOKEN=secret), text=True).strip()
    with contextlib.ExitStack() as ends:
        home = pathlib.Path(ends.enter_context(tempfile.TemporaryDirectory()))
        server, address = hub(args.programs, home, secret)
        ends.callback(server.kill)

        def start(job, ranks):
            started = [worker(args.programs, secret, address, rank, job, ranks) for rank in range(ranks)]
            for process in started:
                ends.callback(process.wait)
                ends.callback(process.kill)
            return started

        workers = start("resnet", RANKS)
        page = Browser(args.browser)
        ends.callback(page.close)
        for what, whom in check(page, address, token, args.pictures):
            if what == "another job":
                start(whom, MANY)
            else:
                os.kill(server.pid if whom is None else pid_of(workers[whom]), what)
        # Expected complaints: the answers 401 to the first two requests, and the refused connections at the end.
        expected = ["401", "ERR_CONNECTION_REFUSED"]
        others = [one for one in page.complaints() if not any(word in str(one) for word in expected)]
        assert not others, others
    print("the page shows what happens")


if __name__ == "__main__":
    sys.exit(main())
