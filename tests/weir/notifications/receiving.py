"""Receivers of a test's: what they got, and what happens to them, the test decides."""

got = []
"""The notifications that were received, in their order: (name, document)."""

away = set()
"""The names of receivers that do not answer."""

step = [lambda name: None]
"""Called before a receiver notes what it got, and after it."""


def reset():
    got.clear()
    away.clear()
    step[0] = lambda name: None


def tell(event, who="tell"):
    step[0](event)
    if who in away:
        raise ConnectionError(f"{who} does not answer, password=hunter2")
    got.append((who, event))
    step[0](event)


def ids(who="tell"):
    return [event["id"] for name, event in got if name == who]


def first(found):
    """Without repeats, in the order of the first times."""
    return list(dict.fromkeys(found))


not_callable = 1
