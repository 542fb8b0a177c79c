"""Airflow's own notifiers as receivers: they are made, rendered and called as Airflow does."""

from __future__ import annotations

import pytest
from airflow.sdk import BaseNotifier
from tests.messages.kinds import of_kind

from weir.dataflow import notifier
from weir.errors import Misconfigured
from weir.notifications.delivery import send

EVENT = {"version": 1, "id": "ladder/person_needed/x", "kind": "person_needed", "text": "it has failed"}
sent = []


@pytest.fixture(autouse=True)
def nothing_sent():
    sent.clear()


class Mail(BaseNotifier):
    template_fields = ("subject",)

    def __init__(self, subject="{{ weir_event.kind }} of {{ run_id }}", to="ops"):
        super().__init__()
        self.subject, self.to = subject, to

    def notify(self, context):
        sent.append((self.to, self.subject, context["weir_event"]))


class Async(Mail):
    def notify(self, context):
        raise NotImplementedError

    async def async_notify(self, context):
        sent.append(("async", self.subject, context["weir_event"]))


class Refused(Mail):
    def notify(self, context):
        raise ConnectionRefusedError("the mail server is away")


def made(to):
    return Mail(to=to)


def no_notifier():
    return "mail"


def tell(name, context=None, **options):
    found = {"run_id": "scheduled__1"} if context is None else context
    send(notifier(f"{__name__}.{name}", **options), EVENT, None, lambda: found)


@pytest.mark.parametrize(
    ("name", "options", "to"), [("Mail", {"to": "me"}, "me"), ("made", {"to": "you"}, "you"), ("Async", {}, "async")]
)
def test_a_notifier_renders_its_templates_with_the_notification_and_the_context(name, options, to):
    tell(name, **options)
    assert sent == [(to, "person_needed of scheduled__1", EVENT)]


def test_a_notifier_does_not_change_the_context_of_the_task():
    context = {"run_id": "scheduled__1"}
    tell("Mail", context)
    assert context == {"run_id": "scheduled__1"}


def test_a_notifier_that_fails_has_not_received_it():
    with pytest.raises(ConnectionRefusedError):
        tell("Refused")


def test_what_makes_no_notifier_is_named():
    with pytest.raises(Misconfigured, check=of_kind("notifications.not_callable", name="str")):
        tell("no_notifier")
