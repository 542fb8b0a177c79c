"""The plugin's endpoint on Airflow's api-server, and the client that tasks use."""
