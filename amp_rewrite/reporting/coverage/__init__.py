"""How much of a model runs in half: counted for any model, held against rules, told in many forms."""
