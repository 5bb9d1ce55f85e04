"""The search for the plan with the least predicted time that meets a target: what has to stay float32."""
