"""Drawings: boxes apart, layers from left to right, whatever names there are, and an SVG that can be read."""

import random
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from weir.views.drawings import drawing_of, svg_file, svg_of
from weir.views.graphs import ExchangeEdge, RegionNode, RunGraph, StageNode, SubtaskNode, SubtaskStatus

HOSTILE = '<script>alert("x")</script>&\'"'


def region(name, *stages, parallelism=1, status=SubtaskStatus.VALID):
    return RegionNode(
        name=name,
        task_id=name,
        parallelism=parallelism,
        stages=tuple(
            StageNode(name=each, kind="transform", function="m:f", gates=(), targets=()) for each in stages or (name,)
        ),
        subtasks=tuple(subtask(each, status) for each in range(parallelism)),
    )


def subtask(number, status):
    none = dict.fromkeys(("attempt", "state", "since", "seconds", "code", "generation", "error"))
    return SubtaskNode(subtask=number, map_index=-1, status=status, try_number=1, rows=1, bytes=80, **none)


def edge(producer, reader, kind="blocking", size=80):
    return ExchangeEdge(
        producer=producer, reader=reader, kind=kind, by=(), is_broadcast=False, is_pointwise=False, rows=1, bytes=size
    )


def graph(regions, exchanges):
    return RunGraph(
        regions=tuple(regions),
        close_task_id="weir_close",
        close=subtask(0, SubtaskStatus.VALID),
        exchanges=tuple(exchanges),
    )


def large(seed):
    draw = random.Random(seed)
    names = [f"stage_{number}_with_a_name" for number in range(50)]
    edges = [
        edge(names[producer], names[reader])
        for reader in range(1, 50)
        for producer in draw.sample(range(max(0, reader - 6), reader), min(reader, draw.choice([1, 1, 2, 3])))
    ]
    return graph([region(name, parallelism=draw.choice([1, 4])) for name in names], edges)


def apart(one, other):
    beside = one.x + one.width <= other.x or other.x + other.width <= one.x
    return beside or one.y + one.height <= other.y or other.y + other.height <= one.y


@pytest.mark.parametrize("seed", range(5))
def test_fifty_stages_are_apart_and_each_reader_is_to_the_right(seed):
    of = large(seed)
    drawing = drawing_of(of)
    boxes = {box.name: box for box in drawing.boxes}
    assert len(boxes) == 50
    assert all(apart(one, other) for one in drawing.boxes for other in drawing.boxes if one is not other)
    for each in of.exchanges:
        assert boxes[each.producer].x + boxes[each.producer].width <= boxes[each.reader].x
    assert all(box.x >= 0 and box.x + box.width <= drawing.width for box in drawing.boxes)
    assert all(box.y >= 0 and box.y + box.height <= drawing.height for box in drawing.boxes)


def test_parts_that_are_not_joined_are_drawn_below_each_other():
    drawing = drawing_of(graph([region("a"), region("b"), region("c")], [edge("a", "b")]))
    assert all(apart(one, other) for one in drawing.boxes for other in drawing.boxes if one is not other)


def test_the_stages_of_a_region_are_one_box_and_what_they_read_of_each_other_no_line():
    of = graph([region("a-b", "a", "b"), region("c")], [edge("a", "b", "pipelined", None), edge("b", "c")])
    drawing = drawing_of(of)
    assert [[stage.title.split(";")[0] for stage in box.stages] for box in drawing.boxes] == [
        ["transform a", "transform b"],
        ["transform c"],
    ]
    assert len(drawing.lines) == 1


def test_what_reads_the_epoch_before_goes_around_its_own_box():
    drawing = drawing_of(graph([region("a")], [edge("a", "a", "previous", None)]))
    assert [line.kind for line in drawing.lines] == ["previous"]


def test_a_box_has_the_status_that_a_person_has_to_see_first():
    mixed = region("a", parallelism=2)
    mixed = RegionNode(
        name="a",
        task_id="a",
        parallelism=2,
        stages=mixed.stages,
        subtasks=(subtask(0, SubtaskStatus.VALID), subtask(1, SubtaskStatus.LOST)),
    )
    (box,) = drawing_of(graph([mixed], [])).boxes
    assert box.status == SubtaskStatus.LOST.value
    assert box.said == "1 valid, 1 lost"
    assert len(box.said) * 6.6 < box.width


def test_hostile_names_are_text():
    drawing = drawing_of(graph([region(HOSTILE)], []))
    whole = ET.fromstring(svg_file(drawing))  # noqa: S314  it is ours
    assert not [each for each in whole.iter() if each.tag.endswith("script")]
    link = svg_of(drawing, lambda _: f"/weir?{HOSTILE}")
    anchors = ET.fromstring(link).iter("{http://www.w3.org/2000/svg}a")  # noqa: S314  likewise
    assert [each.get("href") for each in anchors] == [f"/weir?{HOSTILE}"]


def test_a_region_of_later_code_is_marked():
    first, second = region("first"), region("second", parallelism=2)
    subtasks = (replace(each, generation=1 + each.subtask, seconds=9.5 - each.subtask) for each in second.subtasks)
    later = replace(second, subtasks=tuple(subtasks))
    drawing = drawing_of(graph([first, later], [edge("first", "second")]))
    assert {box.name: box.said for box in drawing.boxes} == {
        "first": "valid",
        "second": "2 valid, 9.5 s; code 1 and 2",
    }
    assert svg_of(drawing).count('class="code"') == 1
