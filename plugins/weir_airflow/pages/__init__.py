"""Pages in Airflow's UI: each shows a document that a command prints with `--json`, and nothing else."""
