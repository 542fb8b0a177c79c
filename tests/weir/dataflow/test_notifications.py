"""Receivers of notifications are declared as data, checked when they are declared, and recorded."""

import json

import pytest
from tests.messages.kinds import of_kind

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


def test_kinds_are_in_one_order_and_none_are_all_that_may_need_somebody():
    assert callback("a:b", kinds=["version_published", "checkpoint_completed"]).kinds == (
        EventKind.CHECKPOINT_COMPLETED,
        EventKind.VERSION_PUBLISHED,
    )
    left_out = {kind for kind in EventKind if not callback("a:b").wants(kind)}
    assert left_out == {EventKind.FAILED_OVER, EventKind.HEALED}
    assert callback("a:b", kinds="healed").wants(EventKind.HEALED)
    assert not callback("a:b", kinds="person_needed").wants(EventKind.VERSION_PUBLISHED)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: callback("tell"), of_kind("dataflow.notify_reference_malformed")),
        (lambda: notifier("a b.C"), of_kind("dataflow.notify_reference_malformed")),
        (lambda: callback(print), of_kind("dataflow.notify_reference_malformed")),
        (lambda: callback("a:b", kinds="published"), of_kind("dataflow.event_kind_unknown")),
        (lambda: callback("a:b", at=object()), of_kind("dataflow.notify_options_not_json")),
        (lambda: notifier("a:B", url="smtp://me:s3cret@mail/"), of_kind("dataflow.notify_options_have_secret")),
        (lambda: callback("a:b", receiver="x" * 251), of_kind("dataflow.receiver_malformed")),
        (lambda: webhook(""), of_kind("dataflow.conn_id_malformed")),
        (lambda: webhook("ops", "weir"), of_kind("dataflow.webhook_path_malformed")),
        (lambda: flow("alerts:tell"), of_kind("dataflow.not_a_receiver")),
        (lambda: flow(callback("a:b"), callback("a:b", to="x")), of_kind("dataflow.receiver_twice")),
        (
            lambda: Dataflow("flow", [source("a", "p:a"), sink("a", "out")], notify=callback("a:b")),
            of_kind("dataflow.notify_not_a_list"),
        ),
    ],
)
def test_what_cannot_be_a_receiver_is_refused_when_it_is_declared(make, message):
    with pytest.raises(Misconfigured, check=message) as caught:
        make()
    assert "s3cret" not in str(caught.value)
