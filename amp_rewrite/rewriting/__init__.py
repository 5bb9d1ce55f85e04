"""What follows from the colours: the plan, and how it is carried out, tidied, annotated and checked."""
