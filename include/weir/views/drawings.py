"""Draws graphs as SVG: layers from left to right, the stages of a region, or the data sets of a dataflow, in one box.

Where the boxes stand and how the lines run is grandalf's layout (Sugiyama's method); what is drawn is the graph alone.
A drawing has no script, no style sheet of its own and no address but the links that it is given: its classes are
styled by the page around it, or by `svg_file`, which makes it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final

from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout
from grandalf.routing import route_with_lines
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from weir.dataflow.stage import ExchangeKind, dataset_of
from weir.units import format_size
from weir.views.graphs import ExchangeEdge, RegionNode, RunGraph, StageNode, counted
from weir.views.lineage import Lineage

_LINE, _TITLE, _PAD, _MARGIN = 17, 20, 8, 12
"""The heights of a stage's line and of a box's title, the space inside a box and around the drawing, in pixels."""
_BETWEEN_LAYERS, _BETWEEN_BOXES = 96, 22
_CHARACTER: Final = 6.6
"""The width of a character of a label, in pixels."""
_SMALL: Final = 6.7
"""The same where it is small."""
_NARROWEST, _WIDEST = 110, 240
_LONGEST_HOW: Final = 15
"""How many characters of what a line says fit between two layers."""
_ROUNDS: Final = 12
"""How often the layout looks for fewer crossings."""

_MARKS: Final = {"source": "◂ ", "sink": "▸ ", "state": "▤ "}


def templates_of(package: str) -> Environment:
    """Return the templates of a package: they escape what they are given, and know each name that they use."""
    return Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


environment: Final = templates_of("weir.views")

STYLE: Final = Path(__file__).parent / "templates" / "drawing.css"
"""The style sheet of a drawing's classes."""

Link = Callable[[str], str | None]
"""The address that the box of a name leads to, None for none."""


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text in a box, with its place; `title` is shown in full where the mouse is."""

    x: float
    y: float
    text: str
    title: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A region, or a dataflow; `status` is that which a person has to see first.

    `said` is how many subtasks have which status, how long the longest took, and what code.
    """

    x: float
    y: float
    width: float
    height: float
    name: str
    title: Label
    stages: tuple[Label, ...]
    said: str
    status: str
    is_of_later_code: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The exchanges between two regions, or those of one with the epoch before; `points` are for an SVG polyline."""

    points: str
    kind: str
    label: Label
    how: Label | None = None
    """How the reader reads: the keys, or that it reads all or as many subtasks index by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Boxes and lines, the size of the whole, in pixels, and what it shows, in words."""

    about: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def drawing_of(graph: RunGraph) -> Drawing:
    """Lay the graph of a run out."""
    of_stage = {stage.name: region.name for region in graph.regions for stage in region.stages}
    between: dict[tuple[str, str], list[ExchangeEdge]] = {}
    for each in graph.exchanges:
        if each.kind in (ExchangeKind.PREVIOUS.value, ExchangeKind.DATASET.value):
            continue
        ends = of_stage[each.producer], of_stage[each.reader]
        if ends[0] != ends[1]:
            between.setdefault(ends, []).append(each)
    drawn = _laid_out(
        "The regions of the run, producers on the left",
        map(_face_of_region, graph.regions),
        {ends: _arrow_of(read) for ends, read in between.items()},
    )
    return _with_other_inputs(drawn, graph, of_stage)


def drawing_of_lineage(found: Lineage) -> Drawing:
    """Lay the lineage of data sets out: a box for each dataflow, and for each asset of Airflow."""
    boxes = {each.name: each.dataflow or each.name for each in found.nodes}
    reads: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for node in found.nodes:
        for read in node.made_of:
            reads.setdefault((boxes[read], node.dataflow), []).append((read, node.name))
    arrows = {
        ends: _Arrow(
            ExchangeKind.BLOCKING.value,
            _first(", ".join(dict.fromkeys(read.removeprefix(ends[0])[1:] for read, _ in pairs)), _LONGEST_HOW),
            "\n".join(f"{name} is made of {read}" for read, name in pairs),
        )
        for ends, pairs in reads.items()
    }
    return _laid_out("Dataflows and what they publish, producers on the left", _faces_of_lineage(found), arrows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Face:
    """What stands in a box; `lines` are texts with what is shown in full, and their kinds."""

    name: str
    title: str
    told: str
    lines: tuple[tuple[str, str, str], ...]
    said: str
    status: str
    is_of_later_code: bool = False


@dataclass(frozen=True, slots=True)
class _Arrow:
    """What stands at a line, with what is shown in full."""

    kind: str
    text: str
    told: str
    how: str = ""


def _face_of_region(region: RegionNode) -> _Face:
    return _Face(
        name=region.name,
        title=_title(region),
        told=f"task {region.task_id}",
        lines=tuple((_stage_text(each), _told(each), each.kind) for each in region.stages),
        said=_said(region),
        status=region.worst.value,
        is_of_later_code=region.is_of_later_code,
    )


def _faces_of_lineage(found: Lineage) -> Iterator[_Face]:
    for name in dict.fromkeys(each.dataflow or each.name for each in found.nodes):
        own = [each for each in found.nodes if name in (each.dataflow, each.name)]
        sets = [each.name for each in own if each.name != name]
        distance = 0 if found.name is None else own[0].distance
        said = "downstream" if distance > 0 else "upstream" if distance else ""
        is_asked = found.name is not None and not distance
        yield _Face(
            name=name,
            title=name,
            told=f"dataflow {name}" if own[0].dataflow else f"{name}, of Airflow",
            lines=tuple((_MARKS["sink"] + dataset_of(each).sink, each, "sink") for each in sets),
            said=said,
            status="asked" if is_asked else "",
        )


def _arrow_of(read: list[ExchangeEdge]) -> _Arrow:
    sizes = [each.bytes for each in read if each.bytes is not None]
    how = ", ".join(dict.fromkeys(short for each in read if (short := _how(each))))
    told = "\n".join(map(_exchange_text, read))
    return _Arrow(read[0].kind, format_size(sum(sizes)) if sizes else "", told, _first(how, _LONGEST_HOW))


def _laid_out(about: str, faces: Iterable[_Face], arrows: Mapping[tuple[str, str], _Arrow]) -> Drawing:
    nodes = {each.name: Vertex(each) for each in faces}
    for vertex in nodes.values():
        vertex.view = _Room(*_size(vertex.data))
    edges = {ends: Edge(nodes[ends[0]], nodes[ends[1]], data=arrow) for ends, arrow in arrows.items()}
    for edge in edges.values():
        edge.view = _Route()
    _place(list(nodes.values()), list(edges.values()))
    boxes = {name: _box(vertex.data, vertex.view) for name, vertex in nodes.items()}
    return Drawing(
        about=about,
        width=max((box.x + box.width for box in boxes.values()), default=0) + _MARGIN,
        height=max((box.y + box.height for box in boxes.values()), default=0) + 2 * _MARGIN,
        boxes=tuple(boxes.values()),
        lines=tuple(_line(boxes[ends[0]], boxes[ends[1]], edge) for ends, edge in edges.items()),
    )


@dataclass(slots=True)
class _Room:
    """What grandalf asks of a vertex. It draws from above to below: what is wide here is high there."""

    h: float
    w: float
    xy: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class _Route:
    """What grandalf asks of an edge."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def setpath(self, points: list[tuple[float, float]]) -> None:
        self.points = points


class _Layers(SugiyamaLayout):  # type: ignore[misc]  # grandalf has no types
    """Sugiyama's layout, in which nothing of a layer overlaps: grandalf takes the mean of places, each alone free."""

    def setxy(self) -> None:
        """Give each vertex its place."""
        super().setxy()
        for layer in self.layers:
            free = -inf
            for vertex in layer:
                view = vertex.view
                x = max(view.xy[0], free + view.w / 2)
                view.xy = x, view.xy[1]
                free = x + view.w / 2 + self.xspace


def _place(nodes: list[Any], edges: list[Any]) -> None:
    """Place the parts of the graph that are not joined below each other."""
    low = 0.0
    for part in Graph(nodes, edges).C:
        layout = _Layers(part)
        layout.xspace, layout.yspace = _BETWEEN_BOXES, _BETWEEN_LAYERS
        layout.route_edge = route_with_lines
        layout.init_all()
        layout.draw(_ROUNDS)
        of_part = [each.view for each in part.sV]
        left = min(each.xy[0] - each.w / 2 for each in of_part)
        first = min(each.xy[1] - each.h / 2 for each in of_part)
        for view in of_part:
            view.xy = view.xy[0] - left + low, view.xy[1] - first
        for edge in part.sE:
            edge.view.points = [(x - left + low, y - first) for x, y in edge.view.points]
        low = max(each.xy[0] + each.w / 2 for each in of_part) + _BETWEEN_BOXES


def _size(face: _Face) -> tuple[float, float]:
    longest = max([len(face.title) + 2, *(len(text) for text, *_ in face.lines)])
    width = min(max(longest * _CHARACTER + 2 * _PAD, _NARROWEST), _WIDEST)
    width = max(width, len(face.said) * _SMALL + 2 * _PAD)
    return width, _TITLE + len(face.lines) * _LINE + _LINE + _PAD


def _title(region: RegionNode) -> str:
    return region.name if region.parallelism == 1 else f"{region.name} x {region.parallelism}"


def _stage_text(stage: StageNode) -> str:
    checked = " ✓" if stage.gates else ""
    return f"{_MARKS.get(stage.kind, '')}{stage.name}{checked}"


def _said(region: RegionNode) -> str:
    """Return how many subtasks have which status, how long the longest took, and code that is not the run's first."""
    counts = counted(each.status for each in region.subtasks)
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    code = f"; code {' and '.join(map(str, region.generations))}" if region.is_of_later_code else ""
    seconds = max((each.seconds for each in region.subtasks if each.seconds is not None), default=None)
    took = "" if seconds is None else f", {seconds:,.1f} s"
    return f"{region.worst.value if region.parallelism == 1 else told}{took}{code}"


def _cut(text: str, width: float) -> str:
    return _first(text, int((width - 2 * _PAD) / _CHARACTER))


def _first(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _with_other_inputs(drawn: Drawing, graph: RunGraph, of_stage: Mapping[str, str]) -> Drawing:
    """Add what regions read of the epoch before, and of other dataflows."""
    boxes = {box.name: box for box in drawn.boxes}
    loops: dict[str, list[ExchangeEdge]] = {}
    inlets: dict[str, list[ExchangeEdge]] = {}
    for each in graph.exchanges:
        if each.kind == ExchangeKind.PREVIOUS.value:
            loops.setdefault(of_stage[each.reader], []).append(each)
        elif each.kind == ExchangeKind.DATASET.value:
            inlets.setdefault(of_stage[each.reader], []).append(each)
    lines = [*drawn.lines, *(_loop(boxes[name], found) for name, found in loops.items())]
    lines += [_inlet(boxes[name], found) for name, found in inlets.items()]
    return replace(drawn, lines=tuple(lines))


def _box(face: _Face, view: _Room) -> Box:
    width, height = view.h, view.w
    x, y = view.xy[1] - width / 2 + _MARGIN, view.xy[0] - height / 2 + _MARGIN
    return Box(
        x=round(x, 1),
        y=round(y, 1),
        width=round(width, 1),
        height=round(height, 1),
        name=face.name,
        title=Label(round(x + _PAD, 1), round(y + _TITLE - 5, 1), _cut(face.title, width), face.told),
        stages=tuple(
            Label(round(x + _PAD, 1), round(y + _TITLE + number * _LINE + 11, 1), _cut(text, width), told, kind)
            for number, (text, told, kind) in enumerate(face.lines)
        ),
        said=face.said,
        status=face.status,
        is_of_later_code=face.is_of_later_code,
    )


def _told(stage: StageNode) -> str:
    return "; ".join(
        [
            f"{stage.kind} {stage.name}",
            *([stage.function] if stage.function else []),
            *(f"checked by {each}" for each in stage.gates),
            *(f"into {each}" for each in stage.targets),
        ]
    )


def _line(producer: Box, reader: Box, edge: Any) -> Line:
    """Draw a line from the right side of a box to the left side of another one."""
    inner = [(y + _MARGIN, x + _MARGIN) for x, y in edge.view.points[1:-1]]
    points = [
        (producer.x + producer.width, producer.y + producer.height / 2),
        *inner,
        (reader.x, reader.y + reader.height / 2),
    ]
    arrow: _Arrow = edge.data
    x, y = (points[-2][0] + points[-1][0]) / 2, (points[-2][1] + points[-1][1]) / 2
    return Line(
        points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points),
        kind=arrow.kind,
        label=Label(round(x, 1), round(y - 4, 1), arrow.text, arrow.told),
        how=Label(round(x, 1), round(y + 11, 1), arrow.how, arrow.told) if arrow.how else None,
    )


def _loop(box: Box, read: list[ExchangeEdge]) -> Line:
    """Draw a line around the corner of a box that reads the epoch before."""
    x, y = box.x + box.width * 0.25, box.y + box.height
    points = [(x, y), (x, y + 9), (x + box.width * 0.5, y + 9), (x + box.width * 0.5, y)]
    told = "\n".join(map(_exchange_text, read))
    return Line(
        points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points),
        kind=ExchangeKind.PREVIOUS.value,
        label=Label(round(x + box.width * 0.25, 1), round(y + 19, 1), "epoch before", told),
    )


def _inlet(box: Box, read: list[ExchangeEdge]) -> Line:
    """Draw a line from above into a box that reads what other dataflows publish, and name that beside it."""
    x, y = box.x + _PAD, box.y
    told, names = "\n".join(map(_exchange_text, read)), ", ".join(dict.fromkeys(each.producer for each in read))
    text = _first(names, _LONGEST_HOW * 2)
    return Line(
        points=f"{x:.1f},{y - _MARGIN:.1f} {x:.1f},{y:.1f}",
        kind=ExchangeKind.DATASET.value,
        label=Label(round(x + _PAD + len(text) * _CHARACTER / 2, 1), round(y - 3, 1), text, told),
    )


def _exchange_text(each: ExchangeEdge) -> str:
    how = f" {_how(each)}" if each.by else f", {_how(each)}" if _how(each) else ""
    size = "" if each.bytes is None else f": {each.rows:,} rows, {format_size(each.bytes)}"
    return f"{each.reader} reads {each.producer}, {each.kind}{how}{size}"


def _how(each: ExchangeEdge) -> str:
    if each.by:
        return f"by {', '.join(each.by)}"
    return "broadcast" if each.is_broadcast else "index by index" if each.is_pointwise else ""


def svg_of(drawing: Drawing, link: Link = lambda _: None) -> Markup:
    """Return a drawing as an SVG element for a page, which styles its classes."""
    return _rendered(drawing, link, "")


def svg_file(drawing: Drawing) -> str:
    """Return a drawing as an SVG file, with its style."""
    return _rendered(drawing, lambda _: None, Markup(STYLE.read_text()))  # noqa: S704  it is ours


def _rendered(drawing: Drawing, link: Link, css: str) -> Markup:
    template = environment.get_template("drawing.svg")
    return Markup(template.render(drawing=drawing, link=link, style=css))  # noqa: S704  the template escapes
