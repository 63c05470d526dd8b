"""The commands of `asr`: one file each, path in, path out."""
