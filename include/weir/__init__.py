"""Fine-grained recovery and incremental checkpoints for pipelines that Airflow schedules and Spark computes."""
