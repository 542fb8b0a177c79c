"""Rows of queryable states, for those who may read the DAG.

Invariant: a request is answered only to a user who may read the task instances of each DAG that has runs of the
dataflow; nothing is written, neither into the ledger nor into the store.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request, Response, status
from fastapi.concurrency import run_in_threadpool

from weir.coordination.services import Services
from weir.errors import Message, WeirError
from weir.ledger.ledger import Ledger
from weir.reading.lookups import RowGroupCache
from weir.reading.state_opening import StateReader
from weir.requests.verbs import dags_of
from weir.serving.state_service import PATHS, StateService, refused, unavailable
from weir.views.states import require_queryable
from weir_airflow.api.users import rights_of
from weir_airflow.connections.connections import settings

if TYPE_CHECKING:
    from weir.settings import Settings

router = APIRouter()

CACHED_BYTES: Final = 256 << 20
"""The bound of rows that an API server keeps in memory."""


@router.get(PATHS["GET"], response_model=None)
@router.post(PATHS["POST"], response_model=None)
async def rows(request: Request, user: GetUserDep) -> Response:
    """Answer with rows of a queryable state."""
    dataflow = request.path_params["dataflow"]
    try:
        services, service = await run_in_threadpool(_SERVED.now)
        dags = await run_in_threadpool(dags_of, services, dataflow)
    except WeirError as error:
        return unavailable(error)
    if not await run_in_threadpool(_may_read, user, dags):
        return refused(status.HTTP_403_FORBIDDEN, Message("api.rows_forbidden", dataflow=dataflow))
    return await service.answer(request)


def _may_read(user: GetUserDep, dags: tuple[str, ...]) -> bool:
    from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415  the app is being made while this is imported

    manager = get_auth_manager()
    return bool(dags) and all(rights_of(manager, user, dag_id).reads for dag_id in dags)


class _Served:
    """What answers in this process, as long as the settings are the same."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._of: tuple[Settings, Services, StateService] | None = None

    def now(self) -> tuple[Services, StateService]:
        """Return it. Raises NotMigrated, OtherBuild, Misconfigured or Retryable."""
        found = settings()
        with self._lock:
            if self._of is None or self._of[0] != found:
                services = Services.of(found, Ledger.open_as_it_is(found.ledger))
                by = StateReader(services, is_leasing=False)
                service = StateService(by, partial(require_queryable, services), RowGroupCache(CACHED_BYTES))
                self._of = found, services, service
            return self._of[1:]


_SERVED: Final = _Served()
