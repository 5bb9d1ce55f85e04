"""A model as it is read, prepared and written: graphs, constants, external data."""
