"""What the corpus is run on: both kinds of sessions, a store, and the code of a region."""

from __future__ import annotations

import uuid

import pytest
from tests.builders.jobs import Jobs
from tests.corpus.engines import CONNECT, OWN_SESSION, InOwnSession, OnConnect

from weir.code.archive import pack, top_level
from weir.code.version import code_version
from weir.formats.region_job import CodeToRun
from weir.store.store import Store


@pytest.fixture(scope="session")
def own_session():
    """The one process with a session of its own."""
    made = InOwnSession()
    yield made
    made.close()


@pytest.fixture(scope="session", params=[CONNECT, OWN_SESSION])
def engine(request):
    """What computes a region."""
    if request.param == CONNECT:
        return OnConnect(request.getfixturevalue("server").url)
    return request.getfixturevalue("own_session")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = Store.open(str(tmp_path_factory.mktemp("corpus") / "store"))
    opened.initialise()
    return opened


@pytest.fixture(scope="module")
def jobs(store):
    return Jobs(store)


@pytest.fixture(scope="module")
def code_of(store, tmp_path_factory):
    """Store a module of stage functions, and SQL files beside it; the name of the module, and the code of the job."""
    with pytest.MonkeyPatch.context() as patch:

        def code(text, queries=()):
            folder = tmp_path_factory.mktemp("modules")
            patch.syspath_prepend(str(folder))
            name = f"corpus_{uuid.uuid4().hex[:12]}"
            (folder / f"{name}.py").write_text(text)
            functions = (f"{name}:nothing", *dict(queries))
            archive = pack(top_level(functions[:1]), dict(queries))
            path = f"flow/_code/{uuid.uuid4().hex}.zip"
            store.create(path, archive.data)
            version = code_version(archive.files, functions)
            return name, CodeToRun(version=version, archive=archive.fingerprint, path=path)

        yield code
