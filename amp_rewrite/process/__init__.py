"""What happens to the process around the work: imports, forks, signals, time and memory."""
