"""K-means of queries in the metric that the keys define."""
