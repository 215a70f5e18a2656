from setuptools import setup

setup(name="torch", version="2.5.1", packages=["torch"])
