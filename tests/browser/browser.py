"""A headless Chromium, driven through its DevTools protocol."""

import base64
import json
import os
import signal
import subprocess
import tempfile
import time

import websocket

PATIENCE_S = 60
"""The timeout of every wait, in seconds. Every step takes less time."""


class Browser:
    """A page in a headless browser, which is started for this page."""

    def __init__(self, program):
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The browser runs without a sandbox, because root and most containers cannot have a sandbox. It opens only this
        # project's pages.
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
        self.process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={self.home.name}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for line in self.process.stderr:
            if line.startswith("DevTools listening on "):
                break
        else:
            raise RuntimeError(f"{program} ended before it listened")
        self.socket = websocket.create_connection(line.split()[-1], suppress_origin=True, timeout=PATIENCE_S)
        self.asked, self.session, self.events = 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        self.asked += 1
        request = {"id": self.asked, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        self.socket.send(json.dumps(request))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") != self.asked:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def value(self, script):
        """Returns the value of a JavaScript expression in the page, or the result of the promise that it returns."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, what, script, *words):
        """Waits until the value of a JavaScript expression, as text, contains all words."""
        end, seen = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < end:
            # While the page loads, the expression may fail, because elements are missing.
            seen = self.value(f"(() => {{ try {{ return {script}; }} catch {{ return null; }} }})()")
            if seen is not None and all(word in str(seen) for word in words):
                return seen
            time.sleep(0.1)  # a poll, because the protocol has no event for a changed text
        raise AssertionError(f"{what}: expected {words} within {PATIENCE_S} s, seen {seen!r}")

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowDown": 40}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def window(self, width, height, scheme):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def requested(self):
        """Returns the addresses that the page has requested."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self):
        """Returns the exceptions of the page's scripts, and the errors in the browser's log."""
        thrown = [event["params"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        entries = [event["params"]["entry"] for event in self.events if event.get("method") == "Log.entryAdded"]
        return thrown + [entry for entry in entries if entry["level"] == "error"]

    def close(self):
        self.socket.close()
        # Not all processes of the browser end with its first process.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.home.cleanup()
