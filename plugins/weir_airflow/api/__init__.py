"""The plugin's endpoint and pages on Airflow's api-server, and the client that tasks use."""
