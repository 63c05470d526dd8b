"""Near-field attention: exact weights near each query, its cluster's weights far from it."""
