"""What an S3 copies for a region: Spark writes to temporary names, and has the server copy the files to their own.

    pytest tests/benchmarks/test_copied_bytes.py --benchmark-only -s

prints what docs/storage.md says of it: the ratio holds on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from tests.builders.jobs import Jobs
from tests.servers.faulty_http import FaultyHttp, Request
from tests.servers.java import JarsMissing
from tests.servers.s3 import running_s3
from tests.weir_spark.s3a import BUCKET, server_on_s3

from weir.formats.codec import from_json
from weir.formats.region_job import RegionReport
from weir.store.store import Store
from weir.topology.partitions import PLAIN, Layout
from weir_spark.transport.connect import ConnectEngine

PIPELINE = """
def numbers(ctx):
    return ctx.spark.sql("select id key, hash(id) value from range(0, 2000000, 1, 4)")
"""
LAYOUTS = (Layout(("key",), 128), PLAIN)


def kind_of(request: Request) -> str:
    if request.copied:
        return "copy"
    is_listing = request.method == "GET" and "list-type" in request.path
    return "list" if is_listing else request.method.lower()


def test_bytes_that_an_s3_copies_for_a_region(
    benchmark: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copied_bytes.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with (
            running_s3() as s3,
            FaultyHttp(s3.url).running() as proxy,
            server_on_s3(tmp_path / "spark", proxy.url) as server,
        ):
            s3.make_bucket(BUCKET)
            store = Store.open(f"s3://{BUCKET}/weir", s3.storage_options)
            store.initialise()
            jobs = Jobs(store)
            outputs = [jobs.output("numbers", layout) for layout in LAYOUTS]
            job = jobs.region(jobs.stage("numbers", "copied_bytes:numbers", *outputs, is_source=True))
            engine = ConnectEngine(f"{server.url};user_id=weir", s3.storage_options)
            benchmark.pedantic(lambda: engine.run(job, str(uuid4()), lambda _line: None), rounds=1)  # type: ignore[attr-defined]
            report = from_json(RegionReport, store.read(job.report))
            requests = list(proxy.requests)
    except JarsMissing as missing:
        pytest.skip(str(missing))
    sizes = {file.name: file.bytes for output in report.outputs for file in output.files}
    copied = [unquote(urlsplit(each.path).path).rpartition("/")[2] for each in requests if each.copied]
    ratio = sum(sizes.get(name, 0) for name in copied) / sum(sizes.values())
    print(f"\n{len(sizes)} files of {sum(sizes.values()) / 1e6:.1f} MB: copied {ratio:.2f} times")
    print(f"requests of Spark: {dict(Counter(map(kind_of, requests)))}")
    assert sizes
