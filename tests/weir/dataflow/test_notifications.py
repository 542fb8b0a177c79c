"""Receivers of notifications are declared as data, checked when they are declared, and recorded."""

import json

import pytest

from weir.dataflow import Dataflow, EventKind, callback, notifier, sink, source, webhook
from weir.errors import Misconfigured


def flow(*receivers):
    return Dataflow("flow", [source("a", "p:a"), sink("a", "out")], notify=list(receivers))


def receivers():
    return flow(
        callback("alerts:tell", kinds=["person_needed", "checkpoint_completed"], channel="#ops"),
        webhook("ops_http", "/weir"),
        notifier("airflow.providers.smtp.notifications.smtp.SmtpNotifier", receiver="mail", to="ops@example.org"),
    )


def test_a_record_with_receivers_reads_back_equal():
    assert Dataflow.from_json(json.loads(json.dumps(receivers().to_json()))) == receivers()


def test_receivers_are_named_by_what_they_are_unless_they_have_a_name():
    assert [each.name for each in receivers().notify] == ["callback alerts:tell", "webhook ops_http/weir", "mail"]


def test_a_class_may_be_named_as_airflow_does():
    found = [notifier("a.b.Mail"), notifier("a.b:Mail")]
    assert found[0] == found[1]


def test_kinds_are_in_one_order_and_none_are_all():
    assert callback("a:b", kinds=["version_published", "checkpoint_completed"]).kinds == (
        EventKind.CHECKPOINT_COMPLETED,
        EventKind.VERSION_PUBLISHED,
    )
    assert all(callback("a:b").wants(kind) for kind in EventKind)
    assert not callback("a:b", kinds="person_needed").wants(EventKind.VERSION_PUBLISHED)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: callback("tell"), "callback: write \"module:name\", not 'tell'"),
        (lambda: notifier("a b.C"), "notifier: write"),
        (lambda: callback(print), "callback: write"),
        (lambda: callback("a:b", kinds="published"), "no events of kind 'published': write some of checkpoint_comp"),
        (lambda: callback("a:b", at=object()), "must be JSON values"),
        (lambda: notifier("a:B", url="smtp://me:s3cret@mail/"), "name an Airflow connection"),
        (lambda: callback("a:b", receiver="x" * 251), "at most 250 characters"),
        (lambda: webhook(""), "the id of an Airflow connection"),
        (lambda: webhook("ops", "weir"), 'path must begin with "/"'),
        (lambda: flow("alerts:tell"), "'alerts:tell' in notify is no receiver"),
        (lambda: flow(callback("a:b"), callback("a:b", to="x")), "called 'callback a:b'.*receiver=\"on call\""),
        (lambda: Dataflow("flow", [source("a", "p:a"), sink("a", "out")], notify=callback("a:b")), "must be a list"),
    ],
)
def test_what_cannot_be_a_receiver_is_refused_when_it_is_declared(make, message):
    with pytest.raises(Misconfigured, match=message) as caught:
        make()
    assert "s3cret" not in str(caught.value)
