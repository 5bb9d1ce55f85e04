"""The search for the plan with the least predicted time within an error target."""
