"""Processes that run idioms. They are started once, and again after a run that failed."""

import multiprocessing.connection
import os
import signal
import tempfile
import time

from forkserver import FORKS

from .failure import of_process
from .worker import Result, work

# The timeout, in seconds, for ranks that may wait for a failed rank.
GRACE_S = 5


class Fleet:
    """The processes of a run, one for each rank."""

    def __init__(self, world, backend, hub):
        self.world = world
        self._backend, self._hub = backend, hub
        self._folder = tempfile.TemporaryDirectory(prefix="truth-")
        self._starts, self._jobs = 0, 0
        self._processes, self._ranks, self._traces = [], [], []

    def run(self, idiom, way):
        """Runs an idiom. Returns the result of each rank, in rank order."""
        if not self._processes:
            self._start()
        self._jobs += 1
        for rank in self._ranks:
            rank.send((idiom, way, f"truth-{self.world}-{self._backend}-{self._starts}-{self._jobs}"))
        results = self._collect(idiom, time.monotonic() + idiom.limit_s)
        if any(each.failure for each in results):
            self.stop()  # process groups and hooks are in an unknown state, so the next run gets new processes
        return results

    def _collect(self, idiom, deadline):
        results = [None] * self.world
        while None in results:
            left = deadline - time.monotonic()
            waiting = [rank for rank in range(self.world) if results[rank] is None]
            ready = multiprocessing.connection.wait([self._ranks[rank] for rank in waiting], max(left, 0))
            if not ready:
                for rank in waiting:
                    results[rank] = Result([], self._hang(idiom, rank))
            for rank in waiting:
                if self._ranks[rank] in ready:
                    results[rank] = self._receive(idiom, rank)
                    if results[rank].failure:
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        return results

    def _receive(self, idiom, rank):
        try:
            return self._ranks[rank].recv()
        except EOFError:
            self._processes[rank].join()
            text = f"the process ended without a word, status {self._processes[rank].exitcode}"
            return Result([], of_process(idiom, "Death", text, ""))

    def _hang(self, idiom, rank):
        os.kill(self._processes[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + GRACE_S
        text = ""
        while not text.count("File") and time.monotonic() < until:
            self._processes[rank].join(0.1)
            with open(self._traces[rank]) as file:
                text = file.read()
        return of_process(idiom, "Hang", f"rank {rank} did not end in time", text)

    def _start(self):
        self._starts += 1
        store = os.path.join(self._folder.name, f"store-{self._starts}")
        for rank in range(self.world):
            ours, theirs = FORKS.Pipe()
            traces = f"{store}-{rank}"
            arguments = (rank, self.world, self._backend, store, self._hub, traces, theirs)
            process = FORKS.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._ranks.append(ours)
            self._traces.append(traces)

    def stop(self):
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._processes, self._ranks, self._traces = [], [], []
