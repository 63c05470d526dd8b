"""Packages under their installed names: conf/ and recipes/ travel as asr_conf and asr_recipes."""

from setuptools import find_packages, setup

INSTALLED_NAME = {"asr": "asr", "attention_ext": "attention_ext", "conf": "asr_conf", "recipes": "asr_recipes"}

folders = find_packages(include=[f"{folder}{tail}" for folder in INSTALLED_NAME for tail in ("", ".*")])
packages = [".".join([INSTALLED_NAME[head], *rest]) for head, *rest in (folder.split(".") for folder in folders)]

setup(packages=packages)
