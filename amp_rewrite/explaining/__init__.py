"""Why a model is as it is, and what would change that."""
