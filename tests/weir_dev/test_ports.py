"""Free ports on the loopback interface."""

from __future__ import annotations

import socket

import pytest

from weir_dev.ports import accepts_connections, choose_ports


@pytest.fixture
def listener():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_ports_of_one_choice_differ():
    names = [str(number) for number in range(50)]
    assert len(set(choose_ports(names, {}).values())) == 50


def test_a_preferred_port_is_taken_if_it_is_free():
    free = choose_ports(["a"], {})["a"]
    assert choose_ports(["a"], {"a": free}) == {"a": free}


def test_a_preferred_port_that_is_in_use_is_passed_over(listener):
    assert choose_ports(["a"], {"a": listener})["a"] != listener


def test_one_preferred_port_is_not_given_twice():
    free = choose_ports(["a"], {})["a"]
    chosen = choose_ports(["a", "b"], {"a": free, "b": free})
    assert chosen["a"] == free != chosen["b"]


def test_a_listener_is_seen(listener):
    assert accepts_connections(listener)
    assert not accepts_connections(choose_ports(["a"], {})["a"])
