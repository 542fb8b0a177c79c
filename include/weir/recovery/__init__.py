"""What runs again after a failure, whether, and when: pure decisions."""
