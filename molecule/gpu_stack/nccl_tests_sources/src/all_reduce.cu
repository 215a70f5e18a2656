// By this file an archive of nccl-tests is known. It is linked with what nccl-tests are linked with, and measures nothing.
#include <stdio.h>
#include "nccl.h"
#ifdef MPI_SUPPORT
#include "mpi.h"
#endif

// The header that scenario gpu_stack builds has numbers only; NVIDIA's, in scenario nccl_rebuild, is whole.
#ifndef NCCL_VERSION_CODE
extern "C" int ncclGetVersion(int *version);
#endif

int main() {
  int version = 0, ranks = 0;
  ncclGetVersion(&version);
#ifdef MPI_SUPPORT
  MPI_Comm_size(0, &ranks);
#endif
  printf("headers=%d library=%d ranks=%d\n", NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH, version, ranks);
  return 0;
}
