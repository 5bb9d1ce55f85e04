"""What is known of a model before anything is decided: units, and what holds them in float32."""
