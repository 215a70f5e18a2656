from setuptools import setup

setup(
    name="horovod", version="0.28.1", packages=["horovod", "horovod.torch"], scripts=["horovodrun"]
)
