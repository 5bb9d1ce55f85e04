"""Cost of a model on a device, by its roofline: predicted from shapes, never measured."""
