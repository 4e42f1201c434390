"""Properties of the whole library, over conversations that Hypothesis builds."""
