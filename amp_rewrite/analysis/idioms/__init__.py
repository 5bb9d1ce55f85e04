"""Idioms: subgraphs that spell out one operator, decided as that operator."""
