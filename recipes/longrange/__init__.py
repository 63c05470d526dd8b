"""Classification of long sequences, the tasks of Long Range Arena."""
