"""Files that are read and written: regular ones alone, whole or not at all."""
