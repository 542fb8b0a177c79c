"""What follows a failed try in Airflow: the retry policy, and clearing task instances."""
