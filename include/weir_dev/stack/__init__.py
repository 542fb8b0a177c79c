"""The local stack: Airflow's components and Spark, as processes on the loopback interface."""
