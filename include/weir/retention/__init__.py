"""What may be deleted, and deleting it; free space."""
