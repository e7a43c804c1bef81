"""The hub's metrics, in the form that Prometheus reads."""

import urllib.error
import urllib.request

import pytest

import phub

parser = pytest.importorskip("prometheus_client.openmetrics.parser")
SECRET = "a-secret-of-a-test-of-metrics"


def page(hub, token):
    request = urllib.request.Request(f"http://{hub.address}/metrics", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        return answer.read().decode()


def samples(text):
    families = parser.text_string_to_metric_families(text)
    return {(each.name, *sorted(each.labels.items())): each.value for family in families for each in family.samples}


def test_prometheus_reads_the_page(tmp_path):
    with phub.serve(cores=1, token=SECRET, checkpoints=tmp_path, late_warning_s=1) as hub:
        settings = {"keys": {"weight": (100, 100)}, "optimizer": phub.Sgd(learning_rate=0.5), "job": 'a.b-c', "transport": "tcp"}
        with phub.Session(hub, 0, 1, **settings) as session:
            session.broadcast()
            for _ in range(3):
                session.push()
                session.wait()
            written = session.checkpoint()
            read = phub._phub.token("read", "*", SECRET)
            seen = samples(page(hub, read))
            job = ("job", "a.b-c")
            assert seen[("phub_jobs", ("state", "running"))] == 1
            assert seen[("phub_job_workers", job)] == seen[("phub_job_members", job)] == 1
            assert seen[("phub_job_model_bytes", job)] == 40_000
            assert seen[("phub_job_checkpoint_round", job)] == written.round == 4
            assert seen[("phub_job_checkpoint_size_bytes", job)] == written.bytes
            assert 0 <= seen[("phub_worker_silent_seconds", job, ("rank", "0"))] < 60
            chunks = {name: value for name, value in seen.items() if name[0] == "phub_core_chunks_total"}
            assert sum(chunks.values()) == 4 * 2, "a broadcast and three rounds of two chunks"
            other = samples(page(hub, phub._phub.token("read", "other", SECRET)))
            assert not any(job in name for name in other), "a token of another job shows none of this one"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                page(hub, "nonsense")
            link = (job, ("nic", "lo"), ("rank", "0"), ("transport", "tcp"))
            ways = [(f"phub_link_{way}_bytes_total", *link) for way in ("sent", "received")]
            crossed = 4 * (40_000 + 2 * 16)  # a broadcast and three rounds of two chunks with their headers
            while seen[("phub_job_round", job)] != 4 or [seen.get(way) for way in ways] != [crossed] * 2:
                seen = samples(page(hub, read))  # in this test the hub updates its metrics several times a second
