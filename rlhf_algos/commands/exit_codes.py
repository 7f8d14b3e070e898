"""What the commands return to the shell."""

OK = 0
FAILED = 1
WRONG_CONFIGURATION = 2
# 128 + SIGINT, as shells report it.
INTERRUPTED = 130
