"""What a model costs on a device, by its roofline: predicted from shapes, never measured."""
