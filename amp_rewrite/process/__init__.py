"""The process around the work: imports, forks, signals, time limits, garbage collection, threads of BLAS."""
