"""Result partitions: what they are made of, whether they are there, and whether they are right."""
