"""Reading and writing files: regular files only, written whole or not at all."""
