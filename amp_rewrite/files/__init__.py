"""Reading and atomic writing of regular files."""
