#!/bin/sh
# make_base.sh BASE IMAGE: BASE with PyTorch's CUDA build and nvcc, laid out as NVIDIA's images have it: the toolkit at /usr/local/cuda, its bin in PATH.
# No Dockerfile: classic build can't mount the site's CA, and BuildKit is what the role under test brings its own file for.
set -eu
base=$1 image=$2
docker rm --force make-base >/dev/null 2>&1 || true
docker run --name make-base --volume /etc/trainyard/site:/etc/trainyard/site:ro "$base" sh -euc '
    # Not by --env: what a container is started with, docker commit keeps in the image.
    # PyTorch names the versions of all other libraries of CUDA that it takes.
    env PIP_ROOT_USER_ACTION=ignore PIP_CONFIG_FILE=/etc/trainyard/site/pip.conf $(grep "^[A-Za-z_]*=" /etc/trainyard/site/environment) \
        python3 -m pip install --no-cache-dir --progress-bar off torch==2.11.0 numpy==2.3.4 \
        "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-cuda-cccl==13.0.*" "nvidia-cuda-runtime==13.0.*" "nvidia-nvvm==13.0.*"
    home=$(python3 -c "import nvidia.cu13; print(nvidia.cu13.__path__[0])")
    ln -s lib "$home/lib64"
    ln -s libcudart.so.13 "$home/lib/libcudart.so"
    ln -s "$home" /usr/local/cuda
    /usr/local/cuda/bin/nvcc --version'
docker commit --change "ENV PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" --change 'CMD ["bash"]' make-base "$image"
docker rm make-base
