"""The process around the work: imports, forks, signals, time limits and garbage collection."""
