"""What a sweep asks of Ray Tune and gets from it."""
