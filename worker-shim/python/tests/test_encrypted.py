"""A hub with TLS: all requests of a worker go over TLS, by one client, and do not use the proxies of the environment."""

import re
import socket
import threading

import numpy as np
import pytest

import phub


@pytest.fixture
def encrypted(tmp_path, monkeypatch, capfd):
    """A hub with TLS, which this process trusts."""
    pair = {"tls_cert": tmp_path / "hub.crt", "tls_key": tmp_path / "hub.key"}
    assert phub._phub.run_server(["phub-server", "certificate", "--out", str(tmp_path)]) == 0
    monkeypatch.setenv("PHUB_TLS_FINGERPRINT", re.search(r"fingerprint: (\w+)", capfd.readouterr().out)[1])
    with phub.serve(cores=1, idle="sleep", **pair) as hub:
        yield hub


@pytest.fixture
def proxy(monkeypatch):
    """A proxy that the environment names, and that must receive nothing. Yields the bytes that it receives."""
    got = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen():
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                with connection:
                    got.append(connection.recv(4096))

        threading.Thread(target=listen, daemon=True).start()
        address = "http://127.0.0.1:{}".format(server.getsockname()[1])
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, address)
        yield got
        server.shutdown(socket.SHUT_RDWR)


def test_a_state_comes_over_tls_and_past_proxies(encrypted, proxy):
    settings = {"keys": {"a": (300, 400), "b": (3,)}, "optimizer": phub.Adam(0.5), "token": encrypted.token}
    with phub.Session(encrypted.address, 0, 1, **settings) as session:
        session.broadcast({"a": np.ones((300, 400)), "b": np.ones(3)})
        session.push_pull("a", np.ones((300, 400)))
        session.push_pull("b", np.ones(3))
        state = session.state()
        assert state.round == 2 and state.names == ["exp_avg", "exp_avg_sq"]
        for key in settings["keys"]:
            np.testing.assert_array_equal(state.tensors[key], session.weights(key))
    assert proxy == []


def test_a_worker_without_tls_shows_no_token_past_proxies(hub, proxy):
    with phub.Session(hub, 0, 1, keys={"a": (3,)}, optimizer=phub.Sgd(0.5)) as session:
        session.broadcast({"a": np.ones(3)})
        assert session.state().round == 1
    assert proxy == []


def test_a_state_from_a_hub_that_is_gone_is_an_error_of_the_hub():
    with phub.serve(cores=1, idle="sleep") as hub:
        session = phub.Session(hub, 0, 1, keys={"a": (3,)}, optimizer=phub.Sgd(0.5))
        session.broadcast({"a": np.ones(3)})
    with pytest.raises(phub.HubLostError, match='the state of job "train-.*did not arrive from the hub at 127.0.0.1'):
        session.state()
    session.close()
