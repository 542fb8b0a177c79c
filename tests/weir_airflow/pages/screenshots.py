"""Takes the screenshots of docs/pages.md, of pages that Airflow's real API server serves: needs Chromium.

`.venv/bin/python -m pytest -n0 tests/weir_airflow/pages/screenshots.py` writes docs/figures/pages/*.png anew.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path

import pytest
from tests.weir_airflow.pages.flights import HEALED, PENDING, PLAIN, STOPPED

FOLDER = Path(__file__).parents[3] / "docs" / "figures" / "pages"
HIGHEST = 900

OF_DAG = f"/weir/dags/{PLAIN.dag}"
SHOWN = {
    "dataflows": "/weir/dataflows",
    "dataflow": f"{OF_DAG}/dataflow",
    "run": f"{OF_DAG}/run?run_id={STOPPED}",
    "task": f"{OF_DAG}/task?run_id={HEALED}&task_id=joined&map_index=1",
    "results": f"{OF_DAG}/results?run_id={PENDING}&dataflow=flight_delays",
    "recovery": f"{OF_DAG}/recovery",
    "state": f"{OF_DAG}/state",
    "sinks": f"{OF_DAG}/sinks",
    "quality": f"{OF_DAG}/quality",
}
IN_AIRFLOW = f"/dags/{PLAIN.dag}/runs/{HEALED}/plugin/weir-run"
IS_SHOWN_THERE = "document.querySelector('iframe')?.contentDocument?.querySelector('.said')"

INDEXED = """(async () => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64,%s")).blob());
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const parts = pixel => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  const weight = ([pixel, count]) => count * (1 + Math.max(...parts(pixel)) - Math.min(...parts(pixel)));
  const palette = [...counts].sort((one, other) => weight(other) - weight(one)).slice(0, 256).map(([pixel]) => pixel);
  const far = (one, other) => one.reduce((sum, part, at) => sum + (part - other[at]) ** 2, 0);
  const known = palette.map(parts), nearest = new Map();
  for (const pixel of counts.keys()) {
    const distances = known.map(each => far(each, parts(pixel)));
    nearest.set(pixel, distances.indexOf(Math.min(...distances)));
  }
  let text = "";
  for (const pixel of pixels) text += String.fromCharCode(nearest.get(pixel));
  return JSON.stringify({width: image.width, height: image.height, palette: known, pixels: btoa(text)});
})()"""
"""A picture with 256 of its colours: those that it has most of, and of which few words are, rather than greys."""


@pytest.fixture(scope="module")
def names():
    return PLAIN


@pytest.fixture(scope="module", autouse=True)
def weirs_own(enter_dags):
    """The DAGs by which buttons work."""
    enter_dags("weirs_own.py", "from weir_airflow.upkeep.upkeep import dag, hourly_dag, requests_dag\n")


@pytest.mark.parametrize(("name", "is_dark"), [*((name, False) for name in SHOWN), ("run", True), ("state", True)])
def test_a_page_is_shown(browsing, api_url, flights, name, is_dark):
    with browsing("worker") as page:
        page.looks(height=200, is_dark=is_dark)  # a short page has a short picture
        page.open(api_url + SHOWN[name])
        keep(page, f"{name}-dark" if is_dark else name)


def test_the_page_of_a_run_is_shown_in_airflow(browsing, api_url, flights):
    with browsing("worker") as page:
        page.looks()
        page.open(api_url + IN_AIRFLOW, IS_SHOWN_THERE)
        keep(page, "in-airflow")


def keep(page, name):
    """Write a picture of the page with a palette: a tenth of the bytes."""
    taken = base64.b64encode(page.picture(height=HIGHEST)).decode()
    page.open("about:blank#")
    found = json.loads(page.tell(INDEXED % taken))
    width, pixels = found["width"], base64.b64decode(found["pixels"])
    lines = b"".join(b"\0" + pixels[at : at + width] for at in range(0, len(pixels), width))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, found["height"], 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(part for colour in found["palette"] for part in colour)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    ]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
