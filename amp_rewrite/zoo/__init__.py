"""Many models: each rewritten, compared and reported on by the command, in a process of its own."""
