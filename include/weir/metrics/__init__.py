"""How dataflows stand, as gauges: metrics that Airflow exports with its own."""
