"""Building blocks of every recipe's `prepare.py`: problems, parallel reading, splits, output."""
