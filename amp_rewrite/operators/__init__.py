"""What is known of operators beyond their schemas."""
