"""What looks like a secret is recognised by its name or its form; what only looks similar is let through."""

import time

import pytest

from weir.secrecy import hiding_with, names_secret, secrets_in, without_secrets

SECRETS = [
    *({"spark.hadoop.fs.s3a.secret.key": "abc"}, {"spark.hadoop.fs.s3a.access.key": "AKIA"}),
    *({"spark.hadoop.fs.s3a.session.token": "abc"}, {"fs.s3a.bucket.mine.secret.key": "abc"}),
    *({"spark.hadoop.fs.azure.account.key.mine.dfs.core.windows.net": "abc=="}, {"fs.azure.sas.box.mine.net": "sv=1"}),
    {"spark.hadoop.fs.azure.account.oauth2.client.secret.mine.dfs.core.windows.net": "abc"},
    *({"spark.authenticate.secret": "abc"}, {"spark.connect.authenticate.token": "abc"}),
    *({"spark.ssl.keyStorePassword": "abc"}, {"spark.ssl.keyPassword": "abc"}),
    *({"spark.executorEnv.AWS_SECRET_ACCESS_KEY": "abc"}, {"spark.yarn.appMasterEnv.DB_PASSWORD": "abc"}),
    *({"spark.sql.catalog.mine.credential": "id:abc"}, {"spark.sql.catalog.mine.token": "abc"}),
    *({"spark.cassandra.auth.password": "abc"}, {"spark.es.net.http.auth.pass": "abc"}, {"spark.redis.auth": "abc"}),
    {"spark.executor.extraJavaOptions": "-Xmx1g -Djavax.net.ssl.trustStorePassword=changeit"},
    {"spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:postgresql://db/hive?user=me&password=abc"},
    *({"password": "hunter2"}, {"password": 1234}, {"db_password": "x"}, {"dbPassword": "x"}, {"PASSWD": "x"}),
    *({"token": "abc"}, {"api_token": "abc"}, {"apiKey": "abc"}, {"api_key": "abc"}, {"client_secret": "x"}),
    *({"secret": "x"}, {"secrets": {"warehouse": "x"}}, {"credentials": {"login": "me", "key": "x"}}),
    *({"private_key": "x"}, {"aws_access_key_id": "x"}, {"password_base64": "x"}, {"access_tokens": ["x"]}),
    *({"url": "postgresql://me:hunter2@db/x"}, {"urls": ["s3://b", "mongodb+srv://me:hunter2@h/x"]}),
    *({"url": "jdbc:sqlserver://h;user=me;password=abc"}, {"dsn": "host=db password=abc"}),
    *({"url": "jdbc:oracle:thin:me/abc@//h/x"}, {"url": "https://h/x?sig=abc&se=1"}),
    *({"url": "https://b.s3.amazonaws.com/x?X-Amz-Signature=abc"}, {"url": "https://h/x?access_token=abc"}),
    {"connection": "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=0123456789abcdef=="},
    *({"account_key": "0123456789abcdef0123"}, {"list": [{"deep": {"password": "x"}}]}),
    *({"spark.sql.catalog.mine.header.Authorization": "Bearer abc"}, {"header.Proxy-Authorization": "abc"}),
    *(
        {"headers": {"Cookie": "sid=abc"}},
        {"session_cookie": "abc"},
        {"cookies": {"sid": "abc"}},
        {"auth_header": "abc"},
    ),
    *({"slack_webhook": "https://h/abc"}, {"webhook_url": "https://h/abc"}, {"webhooks": ["https://h/abc"]}),
    *({"hook": "https://hooks.slack.com/services/T0/B0/abc"}, {"hook": "https://discord.com/api/webhooks/1/abc"}),
    *({"SENTRY_DSN": "https://abc@o1.ingest.sentry.io/42"}, {"dsn": "postgresql://me:abc@db/x"}, {"jwt": "abc"}),
    *({"connection_string": "Endpoint=sb://x/;SharedAccessKey=abc"}, {"https_proxy": "http://me:abc@proxy:3128"}),
    *(
        {"sas": "sv=2020&se=1&sig=abc"},
        {"url": "sv=2020-08-04&ss=b&sig=abc%3D"},
        {"spark.hadoop.fs.azure.sas.fixed": "abc"},
    ),
    *(
        {"X-Subscription-Key": "abc"},
        {"header.X-Functions-Key": "abc"},
        {"basic_auth": "me:abc"},
        {"keyfile_dict": "abc"},
    ),
    *({"url": "https://api.telegram.org/bot12:abc/sendMessage"}, {"integration_key": "0123456789abcdef"}),
    *({"spark.snowflake.sfpassword": "abc"}, {"clientsecret": "abc"}, {"sessiontoken": "abc"}),
    *(
        {"DEVOPS_PAT": "0123456789abcdef0123"},
        {"header": "Authorization: Token abc"},
        {"curl": "-H 'Cookie: sid=abc'"},
        {"x": "Basic bWU6YWJj"},
    ),
    *({"note": "Bearer 0123456789abcdef"}, {"repository": "https://0123456789abcdef0123@git.example.com/x"}),
    *({"text": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc"}, {"text": "ghp_0123456789abcdefghij"}),
    {"kafka.sasl.jaas.config": 'org.apache.kafka.PlainLoginModule required username="me" password="abc";'},
    *({"smtp_pass": "abc"}, {"mail.smtp.pass": "abc"}, {"db_pw": "abc"}, {"private_key_pem": "abc"}),
    *({"text": "sk-ant-api03-0123456789abcdefghijABCDEFGHIJ"}, {"text": "sk-proj-0123456789abcdefghijABCDEFGHIJ"}),
    *({"text": "hf_0123456789abcdefghijABCDEFGHIJ01"}, {"text": "rk_live_0123456789abcdef"}),
    *({"text": "whsec_0123456789abcdefghij"}, {"url": "https://hooks.zapier.com/hooks/catch/1/abc/"}),
    *({"id": "AKIAIOSFODNN7EXAMPLE"}, {"pem": "-----BEGIN RSA PRIVATE KEY-----\nabc"}),
]

HARMLESS = [
    *({"spark.sql.shuffle.partitions": "4"}, {"spark.executor.memory": "8g"}, {"spark.sql.ansi.enabled": "true"}),
    {"spark.hadoop.fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.InstanceProfileCredentialsProvider"},
    {"spark.hadoop.hadoop.security.credential.provider.path": "jceks://hdfs/keys.jceks"},
    *({"spark.security.credentials.hive.enabled": "false"}, {"spark.security.credentials.renewalRatio": "0.75"}),
    *(
        {"spark.kubernetes.driver.secretKeyRef.DB_PASSWORD": "db:pw"},
        {"spark.kubernetes.driver.secrets.a-secret": "/"},
    ),
    *({"spark.authenticate": "true"}, {"spark.authenticate.secret.file": "/run/x"}, {"spark.ssl.keyStore": "/x.jks"}),
    *({"spark.hadoop.fs.s3a.endpoint": "http://minio:9000"}, {"spark.sql.catalog.x.uri": "http://h:1/?a=b"}),
    *(
        {"spark.io.encryption.keySizeBits": "256"},
        {"spark.hadoop.fs.s3a.encryption.key": "arn:aws:kms:eu:1:key/abc"},
    ),
    *({"tokenizer": "whitespace"}, {"max_tokens": 4096}, {"tokens": ["a", "b"]}, {"token_column": "t"}),
    *({"pad_token": "<pad>"}, {"sep_token": "[SEP]"}, {"token": "[MASK]"}, {"next_page_token": "abc"}, {"token": 3}),
    *(
        {"secretary": "x"},
        {"secret_name": "prod/db"},
        {"password_file": "/run/x"},
        {"password_variable": "DB_PASS"},
    ),
    *(
        {"is_secret": True},
        {"has_password": False},
        {"password": None},
        {"password": ""},
        {"password": "${DB_PASSWORD}"},
    ),
    *(
        {"password": "{{ conn.db.password }}"},
        {"credentials": "/run/gcp.json"},
        {"credentials": {"conn_id": "x"}},
    ),
    *({"key": "customer_id"}, {"primary_key": "id"}, {"account_key": "account_id"}, {"sort.key": "a"}, {"keys": ["a"]}),
    *({"url": "http://h:8080/x@y"}, {"url": "s3://bucket/a:b@c"}, {"url": "abfss://box@mine.dfs.core.windows.net/x"}),
    *(
        {"url": "postgresql://me:${DB_PASSWORD}@db/x"},
        {"url": "postgresql://me@db/x"},
        {"url": "jdbc:postgresql://h/x"},
    ),
    *({"filter": "token = 'x'"}, {"filter": "token='x'"}, {"author": "me"}, {"compass": "n"}, {"pwd": "/home/me"}),
    *(
        {"title": "Basic understanding"},
        {"title": "bearer instruments"},
        {"webhooks": 3},
        {"proxies": 2},
        {"cookies": 5},
    ),
    *({"routing_key": "orders.created.in.europe"}, {"license_key": "id"}, {"pat": "x*"}),
    *({"query": "select * from t where a & 1 = 0 and token='x'"}, {"query": "where cookie = 'abc' and proxy=true"}),
    *({"query": "select cookie::text, jwt from t where sas='x' and webhook='y'"}, {"sql": "where dsn=%(start)s"}),
    *({"webhook": "slack_connection"}, {"webhook_conn_id": "slack"}, {"notify_webhook": ""}, {"format": "sas"}),
    *(
        {"sas": "/data/x.sas7bdat"},
        {"proxy": "http://proxy:3128"},
        {"dsn": "host=db dbname=x"},
        {"odbc_dsn": "Warehouse"},
    ),
    *(
        {"spark.hadoop.fs.s3a.proxy.host": "proxy"},
        {"cookie_name": "sid"},
        {"authorization_url": "https://h/authorize"},
    ),
    *({"url": "https://me@git.example.com/x"}, {"has_cookies": True}, {"serviceAccountName": "weir"}),
    *({"spark.kubernetes.authenticate.driver.serviceAccountName": "weir"}, {"condition": "a=1&b=2"}, {"sassy": "x"}),
    *({"task": "risk-assessment-of-the-north-western-regions"}, {"cert_pem": "/run/cert.pem"}),
    *({"pass": "first"}, {"control": "/tmp/a b.json"}, {"airports": ["EWR", "JFK"]}, {"day": "2013-01-01"}, {}),
]


@pytest.mark.parametrize("values", SECRETS, ids=str)
def test_a_secret_is_found_and_its_place_is_told_without_its_value(values):
    (found, *_) = list(secrets_in("parameters", values))
    assert found.startswith(f'parameters["{next(iter(values))}"]')
    for text in ("hunter2", "abc", "changeit", "0123456789"):
        assert text not in found


@pytest.mark.parametrize("values", HARMLESS, ids=str)
def test_what_is_usual_is_let_through(values):
    assert list(secrets_in("parameters", values)) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at sc://localhost:15002/;user_id=weir;token=abc", "at sc://localhost:15002/;user_id=weir;token=***"),
        ("jdbc:postgresql://db/x?user=me&password=abc: refused", "jdbc:postgresql://db/x?user=me&password=*** refused"),
        ("mysql://me:abc@db and mysql://you:def@db", "mysql://me:***@db and mysql://you:***@db"),
        ("url: token=abc", "url: token=***"),
        ("no answer of jdbc:oracle:thin:me/abc@h:1521/x", "no answer of jdbc:oracle:thin:me/***@h:1521/x"),
        ("Authorization: Token abc", "Authorization: Token ***"),
        ("Cookie: sid=abc; theme=dark\nAccept: x", "Cookie: ***\nAccept: x"),
        ("{'password': 'two words', 'user': 'me'}", "{'password': '***', 'user': 'me'}"),
        ('{\\"password\\": \\"abc\\", \\"user\\": 1}', '{\\"password\\": \\"***\\", \\"user\\": 1}'),
        ("POST https://hooks.slack.com/services/T0/B0/abc failed", "POST https://hooks.slack.com/services/*** failed"),
        ("{'db_password': 'abc', 'user': 'me'}", "{'db_password': '***', 'user': 'me'}"),
        ("key AKIAIOSFODNN7EXAMPLE is wrong", "key *** is wrong"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY----- is wrong", "*** is wrong"),
    ],
)
def test_a_text_for_people_has_no_secrets(text, shown):
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "[PARSE_SYNTAX_ERROR] unexpected token: FROM",
        "invalid dsn: missing = after host; proxy: none; webhook: not called",
        "PATH_NOT_FOUND: file:/data/weir/x does not exist: key = a, tokenizer: b",
        "region numbers[0]: the Spark server at sc://localhost:15002 went away",
    ],
)
def test_an_ordinary_message_stays_as_it_is(text):
    assert without_secrets(text) == text


def test_what_another_masker_knows_is_hidden_meanwhile():
    with hiding_with(lambda text: text.replace("known elsewhere", "***")):
        assert without_secrets("known elsewhere") == "***"
    assert without_secrets("known elsewhere") == "known elsewhere"


def test_a_long_message_is_read_once():
    began = time.monotonic()
    assert without_secrets("x" * 200_000 + " " + "a.b:" * 50_000).startswith("xxx")
    assert time.monotonic() - began < 5


def test_a_name_is_judged_by_its_last_words():
    assert names_secret("warehouse.password")
    assert not names_secret("password.length")


def test_every_name_that_airflow_hides_is_one_here():
    """Those of addresses and accounts are judged by their values, since most have no secret in them."""
    from airflow.sdk._shared.secrets_masker.secrets_masker import DEFAULT_SENSITIVE_FIELDS

    values = {"proxy": "http://me:abc@h", "proxies": "http://me:abc@h", "dsn": "postgresql://me:abc@h"}
    values |= {"connection_string": "AccountKey=0123456789abcdef", "webhook_url": "https://h/abc"}
    values |= {"service_account": '{"private_key": "-----BEGIN PRIVATE KEY-----\\nabc"}'}
    unknown = [each for each in DEFAULT_SENSITIVE_FIELDS if not list(secrets_in("x", {each: values.get(each, "abc")}))]
    assert unknown == []
