"""Which servers of Hadoop tests start."""

from importlib.util import find_spec
from pathlib import Path

from tests.servers.hadoop import POM, VERSION, locked


def test_hadoops_servers_are_those_of_the_lock_and_of_the_version_of_sparks_client():
    assert POM.read_text().count(f"<version>{VERSION}</version>") == 1
    assert {name: len(digest) for name, digest in locked().items()} == {f"hadoop-client-minicluster-{VERSION}.jar": 64}
    jars = Path(find_spec("pyspark").origin).parent / "jars"
    assert [each.name for each in jars.glob("hadoop-client-api-*.jar")] == [f"hadoop-client-api-{VERSION}.jar"]
