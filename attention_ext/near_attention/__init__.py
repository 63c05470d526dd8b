"""Local attention: each position attends to its neighbours and to a few global positions."""
