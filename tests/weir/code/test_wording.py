"""What many messages end in."""

from weir.wording import closest, did_you_mean, first_few

KNOWN = ("flights", "weather", "delays")


def test_the_closest_name_is_asked_for_and_else_the_rest_is_said():
    assert did_you_mean("flihgts", KNOWN, "it has three") == "did you mean 'flights'?"
    assert did_you_mean("flihgts", KNOWN, lead="; ", form="{}=") == "; did you mean flights=?"
    assert did_you_mean("planes", KNOWN, "it has three", lead="; ") == "it has three"


def test_of_several_that_are_close_the_closest_comes_first():
    assert closest("delay", ["relays", "delays"], 2) == ["delays", "relays"]
    assert did_you_mean("delay", ["relays", "delays"], most=2) == "did you mean 'delays' or 'relays'?"


def test_of_many_only_the_first_few_are_named():
    assert first_few(KNOWN, 3) == "flights, weather, delays"
    assert first_few(KNOWN, 2) == "flights, weather and 1 more"
    assert first_few((), 2) == ""
