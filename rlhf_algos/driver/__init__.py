"""What runs in the driver: where batches come from, who has which weights, and the calls to all processes."""
