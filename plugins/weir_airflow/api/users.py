"""What a user of Airflow may do, who is known by name only, as Airflow's auth manager says now.

Invariant: who cannot be looked up by name may nothing. Only users of an auth manager that this module knows can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from sqlalchemy import select

from weir.coordination.airflow import UserRights

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

_NO_LOOK_UP: Final = "Airflow's auth manager {} cannot be asked about a user by name"


def rights_of(manager: BaseAuthManager[Any], user: BaseUser, dag_id: str) -> UserRights:
    """Return what a user may do with the task instances of a DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    reads, edits = (
        manager.is_authorized_dag(
            method=method, access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user
        )
        for method in ("GET", "PUT")
    )
    return UserRights(reads=bool(reads), edits=bool(edits))


def rights_named(manager: BaseAuthManager[Any], name: str, dag_id: str) -> UserRights:
    """Return what the user of this name may do with the task instances of a DAG, as it is now."""
    found = _user_named(manager, name)
    return UserRights(unknown=found) if isinstance(found, str) else rights_of(manager, found, dag_id)


def _user_named(manager: BaseAuthManager[Any], name: str) -> BaseUser | str:
    """Return the user of this name, else why there is none."""
    kinds = {each.__name__ for each in type(manager).__mro__}
    if "SimpleAuthManager" in kinds:
        found = _simple_user(manager, name)
    elif "FabAuthManager" in kinds:
        found = _fab_user(name)
    else:
        return _NO_LOOK_UP.format(type(manager).__name__)
    return f"Airflow's auth manager knows no active user {name}" if found is None else found


def _simple_user(manager: Any, name: str) -> BaseUser | None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser  # noqa: PLC0415  of this manager
    from airflow.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    if conf.getboolean("core", "simple_auth_manager_all_admins"):
        return SimpleAuthManagerUser(username=name, role="admin")
    return next((user for user in manager.get_users() if user.get_name() == name), None)


def _fab_user(name: str) -> BaseUser | None:
    """Look in the table of users: the security manager can be asked within a request of Flask only."""
    from airflow.providers.fab.auth_manager.models import User  # noqa: PLC0415  of this manager, which has it
    from airflow.utils.session import create_session  # noqa: PLC0415

    with create_session() as session:
        user = session.scalars(select(User).where(User.username == name)).unique().one_or_none()
        return user if user is not None and user.is_active else None
