"""Two processes, and the world of which each case begins anew."""

import pytest
from tests.builders.ledgers import fast_folder
from tests.concurrency.cases import Cases
from tests.concurrency.pair import Pair
from tests.concurrency.worlds import Template
from tests.servers.postgres import new_postgres_url


@pytest.fixture(scope="module")
def cases(postgres):
    with fast_folder() as folder, new_postgres_url(postgres) as url, postgres.connect() as admin:
        template = Template.build(admin, url, folder)
        pair = Pair(url, admin)
        try:
            found = Cases(template, pair, postgres)
            found.learn()
            yield found
        finally:
            pair.stop()
            template.end()
