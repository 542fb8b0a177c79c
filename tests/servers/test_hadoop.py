"""Which servers of Hadoop tests start."""

from importlib.util import find_spec
from pathlib import Path

from tests.servers.hadoop import VERSION
from tests.servers.java import POMS, locked


def test_hadoops_servers_are_those_of_the_lock_and_of_the_version_of_sparks_client():
    assert (POMS / "hadoop" / "pom.xml").read_text().count(f"<version>{VERSION}</version>") == 1
    assert list(locked("hadoop")) == [f"hadoop-client-minicluster-{VERSION}.jar"]
    jars = Path(find_spec("pyspark").origin).parent / "jars"
    assert [each.name for each in jars.glob("hadoop-client-api-*.jar")] == [f"hadoop-client-api-{VERSION}.jar"]


def test_each_lock_has_a_digest_of_each_jar():
    assert all(len(digest) == 64 for pom in POMS.iterdir() for digest in locked(pom.name).values())
