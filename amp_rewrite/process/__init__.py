"""Process management: imports, forks, signals, time limits, garbage collection."""
