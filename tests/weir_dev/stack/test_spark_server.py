"""What the keeper asks a Spark Connect server before it calls it ready."""

from pyspark.sql.connect.proto import AnalyzePlanRequest

from weir_dev.stack.spark_server import question


def test_the_question_is_one_of_spark_connect_s_own_messages():
    expected = AnalyzePlanRequest(session_id="a-session")
    expected.user_context.user_id = "weir"
    expected.explain.plan.root.sql.query = "SELECT 1"
    expected.explain.explain_mode = AnalyzePlanRequest.Explain.ExplainMode.EXPLAIN_MODE_EXTENDED
    assert AnalyzePlanRequest.FromString(question("a-session")) == expected
