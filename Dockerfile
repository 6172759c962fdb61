# An image for GPU clusters: torch with CUDA, DeepSpeed, NVIDIA apex built from source, and this package.
#
#   docker build -t megatron_tlm .
#   docker build -t megatron_tlm --build-arg WITH_APEX=0 .                     # minutes instead of most of an hour
#   docker run --rm --gpus all --ipc host -v /data:/data megatron_tlm \
#       torchrun --standalone --nproc-per-node 8 -m megatron_tlm train --config /data/run.yaml
#
# --ipc host: NCCL moves data between the ranks of a machine through shared memory, and Docker's default of 64 MB is too
# little for it.

# A `devel` image, because apex is compiled here and DeepSpeed compiles what it needs when it is first used: both want
# nvcc of the CUDA release torch was built with. The package takes torch 2.6 to 2.13, so the image's own torch stays.
ARG BASE_IMAGE=pytorch/pytorch:2.9.0-cuda12.8-cudnn9-devel
FROM ${BASE_IMAGE}

# In some of these images python is the system's own and refuses pip without this; in the others it does nothing.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git ninja-build \
    && rm -rf /var/lib/apt/lists/*

# apex is optional: where it is absent, torch's own fused AdamW and RMSNorm do the work. It is built from NVIDIA's source
# because the package of that name on the public index is another project. The commit is pinned; its core extensions
# are all this package uses, so the contrib ones and their submodule are left out.
# TORCH_CUDA_ARCH_LIST: a build machine has no GPU to ask, so say for which ones: A100 8.0, L40 8.9, H100 and H200 9.0.
ARG WITH_APEX=1
ARG APEX_COMMIT=6424da3b4faa6c8f062da4a48c424fff3f02d42d
ARG TORCH_CUDA_ARCH_LIST="8.0;8.9;9.0"
ARG APEX_JOBS=8
RUN if [ "${WITH_APEX}" = 1 ]; then \
        git init -q /tmp/apex \
        && cd /tmp/apex \
        && git fetch -q --depth 1 https://github.com/NVIDIA/apex "${APEX_COMMIT}" \
        && git checkout -q FETCH_HEAD \
        && pip install packaging setuptools wheel \
        && TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST}" APEX_PARALLEL_BUILD="${APEX_JOBS}" \
           APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install --no-build-isolation . \
        && cd / \
        && rm -rf /tmp/apex \
        && python -c "import torch, amp_C, apex.optimizers, apex.normalization"; \
    fi

# The dependencies first, in a layer of their own: a change of the source then rebuilds seconds, not minutes. The
# constraint keeps the image's torch, which apex was built against.
WORKDIR /opt/megatron_tlm
COPY pyproject.toml README.md LICENSE ./
COPY megatron_tlm/__init__.py megatron_tlm/
RUN python -c "import torch; print('torch==' + torch.__version__)" > /tmp/torch.txt \
    && pip install --constraint /tmp/torch.txt '.[export]' \
    && pip uninstall --yes megatron_tlm

COPY . .
RUN pip install --no-deps . && megatron-tlm --help > /dev/null

# A run is a batch job: it ends by itself, and its exit code says how.
HEALTHCHECK NONE
CMD ["megatron-tlm", "--help"]
