"""What-if tools on fixed batches: corrections side by side, and the parts of a mismatch."""
