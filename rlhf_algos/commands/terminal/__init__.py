"""What a command shows while it runs, and how Ctrl-C is taken."""
