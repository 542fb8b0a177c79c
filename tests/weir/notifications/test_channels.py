"""A function of a user's as a receiver."""

from __future__ import annotations

import pytest
from tests.messages.kinds import of_kind
from tests.weir.notifications import receiving

from weir.dataflow import callback
from weir.errors import Misconfigured
from weir.notifications.delivery import send

EVENT = {"version": 1, "id": "ladder/checkpoint_completed/1", "kind": "checkpoint_completed"}
MODULE = "tests.weir.notifications.receiving"


@pytest.fixture(autouse=True)
def nothing_received():
    receiving.reset()


def test_a_function_gets_the_notification_and_the_options_of_its_declaration():
    send(callback(f"{MODULE}:tell", who="ops"), EVENT, None, dict)
    assert receiving.got == [("ops", EVENT)]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no.such.module:tell", of_kind("code.module_missing")),
        (f"{MODULE}:nothing", of_kind("code.name_not_in_module", kind="function")),
        (f"{MODULE}:not_callable", of_kind("code.not_a_function")),
    ],
)
def test_a_function_that_is_not_there_is_named(address, message):
    with pytest.raises(Misconfigured, check=message):
        send(callback(address), EVENT, None, dict)
