"""A StatsD server of a test's, on loopback, and a client that speaks StatsD's datagrams, for Airflow's own logger."""

from __future__ import annotations

import socket

from airflow.sdk._shared.observability.metrics.statsd_logger import SafeStatsdLogger


class StatsdServer:
    """Receives datagrams: a counter or a gauge each. Nothing is lost on loopback while a test sends a few."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.got = []
        """(name, value, "c" or "g"), in their order."""

    def logger(self, **options):
        """Airflow's logger, that sends here."""
        return SafeStatsdLogger(_Client(self._socket.getsockname()), **options)

    def received(self):
        """All that has arrived until now."""
        while True:
            try:
                text = self._socket.recv(65_536).decode()
            except BlockingIOError:
                return self.got
            name, _, rest = text.rpartition(":")
            value, kind = rest.split("|")
            self.got.append((name, float(value), kind))

    def close(self):
        self._socket.close()


class _Client:
    """What Airflow's logger asks of a `statsd.StatsClient` for counters and gauges."""

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(address)

    def incr(self, stat, count=1, rate=1):
        assert rate == 1
        self._send(f"airflow.{stat}:{count}|c")

    def gauge(self, stat, value, rate=1, delta=False):
        assert (rate, delta) == (1, False)
        self._send(f"airflow.{stat}:{value}|g")

    def timing(self, stat, delta):
        """Leave out what Airflow times itself."""

    def timer(self, stat):
        """Leave that out, too."""

    def _send(self, text):
        self._socket.send(text.encode())
